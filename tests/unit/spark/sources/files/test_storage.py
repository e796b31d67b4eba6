"""Files of an object store, read from a real S3 server: the rows that a directory of the same files gives."""

import copy
import os
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from types import SimpleNamespace

import pytest
import requests

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.files.formats import reader_of
from airflow_provider_snowpipe.spark.sources.files.rebuild import LastCommit, rebuild
from airflow_provider_snowpipe.spark.sources.files.spec import AllFiles, ByKey, ByName, FileSource
from airflow_provider_snowpipe.spark.sources.files.storage import storage_of
from airflow_provider_snowpipe.spark.sources.files.storage_options import options_of
from airflow_provider_snowpipe.spark.sources.registry import open_source
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    SourceMissingError,
    SourcePositionError,
    SourceUnavailableError,
)
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import UnitOffset
from tests.azure_service import ACCOUNT, KEY, azure_service
from tests.disturbed_store import wire_to
from tests.file_formats import numbered_rows, write_file
from tests.s3_service import KEY_ID, SECRET, s3_service
from tests.source_log import groups_of
from tests.unit.spark.sources.files.conftest import rows_after


class Lake:
    """A bucket.

    :param service: the server that has it
    """

    def __init__(self, service, bucket):
        self.service, self.bucket, self.url = service, bucket, f"s3://{bucket}/in"
        self.secrets = service.options()
        self.storage = storage_of(self.url, self.secrets)
        service.client.create_bucket(Bucket=bucket)

    def put(self, name, data):
        self.service.client.put_object(Bucket=self.bucket, Key=f"in/{name}", Body=data)

    def groups(self, **options):
        spec = FileSource(path=self.url, **options)
        return {one.partition: one.files for one in groups_of(spec, self.secrets)}

    def file(self, name, **options):
        files = [file for group in self.groups(partitions=AllFiles(), **options).values() for file in group]
        return next(file for file in files if file.name == name)


@pytest.fixture(scope="module")
def service():
    with s3_service() as running:
        yield running


@pytest.fixture
def lake(service, request):
    return Lake(service, f"lake-{abs(hash(request.node.name)):x}")


NAMES = [
    *("a.ndjson", "a.csv", "a.parquet", "a.orc", "a.avro"),
    *("a.ndjson.gz", "a.csv.bz2", "a.ndjson.xz", "a.csv.zst"),
]


@pytest.mark.parametrize("name", [*NAMES, "a.txt"])
def test_a_file_gives_the_rows_that_it_gives_on_disk_after_every_row(lake, tmp_path, name):
    kind = {"txt": "text"}.get(name.split(".")[1], name.split(".")[1])
    if kind == "text":
        (tmp_path / name).write_text("".join(f"line {n}\n" for n in range(150)))
    else:
        write_file(tmp_path / name, numbered_rows("a", range(150)))
    lake.put(name, (tmp_path / name).read_bytes())
    options = {"format": kind, "pattern": "*", "partitions": AllFiles()}
    form = FileSource(path=lake.url, **options).form
    (here,) = groups_of(FileSource(path=str(tmp_path), **options))
    there = lake.file(name, format=kind, pattern="*")
    assert (there.size, there.path) == (here.files[0].size, f"{lake.url}/{name}")

    whole = rows_after(reader_of(form), here.files[0], 0)

    assert len(whole) == 150
    for line in (0, 1, 69, 70, 71, 149, 150):
        assert rows_after(reader_of(form), there, line) == whole[line:]


DAYS = ["day=1/a.ndjson", "day=1/b.ndjson", "day=x%2Fy/a.ndjson", "day=2/.a.ndjson", "_snowpipe/a.ndjson"]
TOPS = ["top.ndjson", "other.ndjson", ".top.ndjson"]


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (DAYS, {}),
        (DAYS, {"pattern": ".*"}),
        ([*DAYS, "day=2/deep/a.ndjson"], {"partitions": ByKey("day", as_columns=True)}),
        (DAYS + TOPS, {"partitions": AllFiles(), "pattern": "**/*"}),
        (DAYS + TOPS, {"partitions": AllFiles(), "pattern": "[!t]*.ndj?on"}),
        (DAYS + TOPS, {"partitions": ByName(r"(?P<partition>[a-z]+)\.ndjson"), "pattern": "*.ndjson"}),
    ],
    ids=str,
)
def test_a_bucket_is_split_as_a_directory_is(lake, tmp_path, names, options):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"{}\n")
        lake.put(name, b"{}\n")
    lake.service.client.put_object(Bucket=lake.bucket, Key="in2/day=1/a.ndjson", Body=b"{}\n")

    here = groups_of(FileSource(path=str(tmp_path), **options))
    there = lake.groups(**options)

    assert here
    assert {name: _named(files) for name, files in there.items()} == {
        one.partition: _named(one.files) for one in here
    }


def _named(files):
    return [(file.name, file.values) for file in files]


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "p%20q",
        "100%",
        "h#ash",
        "q?m=1",
        "pl+us",
        "ü",
        "e\u0301",
        "日本",
        "q'\"",
        "*[x]~",
        "a&b;c,d=e@f$(!)",
    ],
)
def test_an_object_is_listed_and_read_whatever_its_name_is(lake, name):
    lake.put(f"{name}/{name}", b"{}\n")

    (file,) = lake.groups(partitions=AllFiles(), pattern="**/*")["all"]

    assert (file.name, file.path) == (f"{name}/{name}", f"{lake.url}/{name}/{name}")
    assert lake.storage.open(file.path).read() == lake.storage.read(file.name) == b"{}\n"
    assert lake.storage.stat(file.path).size == 3
    assert [one.name for one in lake.storage.below(name).files()] == [name]


@pytest.mark.parametrize("name", ["a//b", "a/../b", "/a"])
def test_a_name_that_the_client_cannot_ask_for_is_refused_with_its_remedy(lake, name):
    lake.put(name, b"{}\n")

    with pytest.raises(ConfigurationError, match="rename") as refused:
        lake.groups(partitions=AllFiles(), pattern="**/*")

    assert lake.url in str(refused.value)


def test_marks_of_folders_are_no_files(lake):
    for name in ("", "day/", "day/deep/"):
        lake.put(name, b"")
    lake.put("day/a.ndjson", b"{}\n")

    assert [one.name for one in lake.storage.files()] == ["day/a.ndjson"]


def test_an_empty_bucket_has_no_files_and_a_missing_one_is_named(service, lake):
    assert lake.groups() == {}
    with pytest.raises(SourceMissingError, match="s3://nowhere/in"):
        list(storage_of("s3://nowhere/in", lake.secrets).files())
    with pytest.raises(FileNotFoundError):
        storage_of("s3://nowhere/in", lake.secrets).create("a", b"1")


def test_more_objects_than_a_page_are_listed_each_once(lake):
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: lake.put(f"{n:04}.ndjson", b"{}\n"), range(1010)))

    assert [one.name for one in lake.storage.files()] == [f"{n:04}.ndjson" for n in range(1010)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", ["same size", "longer", "shorter", "gone"])
def test_an_object_that_changes_between_listing_and_reading_is_refused(lake, tmp_path, name, change):
    write_file(tmp_path / name, numbered_rows("a", range(150)))
    data = (tmp_path / name).read_bytes()
    lake.put(name, data)
    form = FileSource(path=lake.url, format=name.split(".")[1]).form
    file = lake.file(name, format=form, pattern="*")
    if change == "gone":
        lake.storage.delete(name)
    else:
        lake.put(
            name, {"same size": b"{" + data[1:-1] + b" ", "longer": data + data, "shorter": data[:-9]}[change]
        )

    if change == "longer" and name in ("a.ndjson", "a.csv"):  # lines were added: the listed ones are read
        assert len(rows_after(reader_of(form), file, 0)) == 150
        return
    with pytest.raises(SourcePositionError, match=name) as refused:
        rows_after(reader_of(form), file, 0)

    assert "Leave the files in place" in str(refused.value) or "appended" in str(refused.value)


def test_an_object_that_is_overwritten_while_it_is_read_gives_nothing_of_the_other_one(lake):
    data = random.Random(7).randbytes(40 << 20)
    lake.put("big", data)
    path = f"{lake.url}/big"

    with lake.storage.open(path, lake.storage.stat(path).version) as stream:
        assert stream.read(10) == data[:10]
        lake.put("big", bytes(len(data)))
        stream.seek(-5, os.SEEK_END)
        with pytest.raises(SourcePositionError, match="written again"):
            stream.read()


def test_any_part_of_an_object_is_what_is_stored_there(lake):
    chance = random.Random(7)
    data = chance.randbytes(37_000_001)
    lake.put("big", data)

    with lake.storage.open(f"{lake.url}/big") as stream:
        for _ in range(60):
            at = chance.randrange(len(data) + 9)
            stream.seek(at)
            for size in chance.choices([0, 1, 5, 1000, 4 << 20, 9 << 20], k=chance.randrange(1, 6)):
                assert stream.read(size) == data[at : at + size]
                at = min(at + size, max(len(data), at))
        stream.seek(-3, 2)
        assert (stream.read(), stream.read(5), stream.seek(0)) == (data[-3:], b"", 0)
        assert stream.read() == data


def test_one_of_eight_writers_creates_an_object(lake):
    for number in range(10):
        begin = Barrier(8)

        def create(writer, number=number, begin=begin):
            storage = storage_of(lake.url, lake.secrets)
            begin.wait()
            return storage.create(f"log/{number}", str(writer).encode())

        with ThreadPoolExecutor(8) as writers:
            won = list(writers.map(create, range(8)))

        assert won.count(True) == 1
        assert lake.storage.read(f"log/{number}") == str(won.index(True)).encode()


def test_a_key_that_is_refused_is_in_no_text(lake):
    lake.put("a.ndjson", b"{}\n")
    file = lake.file("a.ndjson")
    url = f"http://{lake.service.endpoint}/moto-api/reset-auth"
    requests.post(url, data=b"0", timeout=60).raise_for_status()
    try:
        for ask in (
            lambda: list(lake.storage.files()),
            lambda: lake.storage.stat(file.path),
            lambda: lake.storage.open(file.path, file.version, file.size).read(),
            lambda: lake.storage.create("b", b"1"),
            lambda: lake.storage.delete("a.ndjson"),
        ):
            with pytest.raises(ConfigurationError, match="403 Forbidden") as refused:
                ask()
            assert lake.url in str(refused.value)
            assert "conn_id" in str(refused.value)
            assert _secrets_in(str(refused.value)) == []
            assert refused.value.__cause__ is None
    finally:
        requests.post(url, data=b"inf", timeout=60).raise_for_status()


def test_keys_are_in_no_form_of_a_storage_that_people_see(lake):
    lake.put("a.ndjson", b"{}\n")
    list(lake.storage.files())
    file = lake.file("a.ndjson")

    copied = copy.deepcopy(file)  # by what pickle asks for as well

    assert copied.storage.read("a.ndjson") == b"{}\n"
    for shown in (
        lake.storage,
        copied.storage,
        copied,
        lake.storage.below("x"),
        lake.storage.open(file.path),
    ):
        assert _secrets_in(f"{shown!r} {shown}") == []


@pytest.mark.parametrize("token", [None, "token-of-the-connection"])
def test_the_keys_of_a_connection_are_not_mixed_with_the_environment(service, lake, monkeypatch, token):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-the-environment")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    seen = []
    with wire_to(service.port) as wire:
        wire.edit = lambda request: seen.append(request) or request
        list(storage_of(lake.url, service.options(wire.port, aws_session_token=token)).files())

    (request,) = seen
    assert f"Credential={KEY_ID}/".encode() in request
    assert re.findall(rb"(?i)x-amz-security-token: (\S+)", request) == ([token.encode()] if token else [])


def _secrets_in(text):
    return [secret for secret in (SECRET, KEY_ID) if secret in text]


# -- A wire that is slow, cut or lost ---------------------------------------------------------------------


@pytest.fixture
def wire(service):
    with wire_to(service.port) as made:
        yield made


def _through(wire, lake, tmp_path, name):
    """A file of a few hundred kilobytes that nothing can compress, as it is listed through the wire."""
    notes = [random.Random(n).randbytes(150).hex() for n in range(2000)]
    rows = [{**row, "FILE": note} for row, note in zip(numbered_rows("a", range(2000)), notes, strict=True)]
    write_file(tmp_path / name, rows)
    lake.put(name, (tmp_path / name).read_bytes())
    secrets = lake.service.options(wire.port, config_kwargs={"read_timeout": 1})
    spec = FileSource(path=lake.url, format=name.split(".")[1], pattern="*", partitions=AllFiles())
    (group,) = groups_of(spec, secrets)
    return reader_of(spec.form), group.files[0]


@pytest.mark.parametrize("name", ["a.ndjson", "a.ndjson.gz", "a.parquet", "a.orc", "a.avro"])
@pytest.mark.parametrize("fault", ["503", "closed", "cut", "lost"])
def test_a_request_that_fails_is_repeated(wire, lake, tmp_path, name, fault):
    reader, file = _through(wire, lake, tmp_path, name)
    wire.disturb(fault, 1 if fault == "lost" else 3, "GET")

    rows = rows_after(reader, file, 0)

    assert [row["ID"] for _, row in rows] == list(range(2000))
    assert not wire.faults


@pytest.mark.parametrize(
    ("name", "fault"), [("a.ndjson.gz", "503"), ("a.parquet", "closed"), ("a.orc", "503")]
)
def test_a_request_that_fails_again_and_again_is_named_and_worth_another_try(
    wire, lake, tmp_path, name, fault
):
    reader, file = _through(wire, lake, tmp_path, name)
    wire.disturb(fault, 1000, "GET")

    with pytest.raises(SourceUnavailableError, match=name) as failed:
        rows_after(reader, file, 0)

    assert "request get" in str(failed.value)
    assert "executors" in str(failed.value)
    assert failed.value.retryable
    assert len(str(failed.value).split()) <= 60
    assert _secrets_in(str(failed.value)) == []


def test_a_store_that_does_not_answer_ends_the_listing_within_its_time(wire, lake, tmp_path):
    _, file = _through(wire, lake, tmp_path, "a.ndjson")
    wire.disturb("503", 1000)
    begin = time.monotonic()

    with pytest.raises(SourceUnavailableError, match=r"request list .*503.* after \d+ retries"):
        list(file.storage.files())

    assert time.monotonic() - begin < 90


# -- What a path and a connection may be -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("ftp://host/in", "scheme 'ftp'"),
        ("S3://lake/in", "scheme 'S3'"),
        ("s3:///in", "lacks its bucket"),
        ("s3://", "lacks its bucket"),
        ("s3://lake//in", "lacks its bucket"),
        ("s3://lake/a/../b", "two slashes"),
        ("s3://lake/in?region=eu-west-1", "conn_id"),
        ("s3://lake/in#x", "conn_id"),
        ("s3://KEYOFSOMEBODY:canary-secret@lake/in", "password"),
        ("s3://canary-secret@lake/in", "before @"),
        ("abfss://lake:canary-secret@a.dfs.core.windows.net/in", "password"),
    ],
)
def test_a_url_that_no_storage_reads_is_refused_when_the_dag_is_parsed(path, message):
    with pytest.raises(ConfigurationError, match=message) as refused:
        FileSource(path=path)

    assert "canary-secret" not in str(refused.value)


@pytest.mark.parametrize(
    "path", ["s3://lake", "s3a://lake/a b/c%20d/", "gs://lake/in", "az://lake", "/in?x#y"]
)
def test_a_url_or_a_directory_is_taken_as_it_is_written(path):
    assert FileSource(path=path).path == path


def _connection(conn_type, login=None, password=None, host=None, **extra):
    return SimpleNamespace(
        conn_id="lake", conn_type=conn_type, login=login, password=password, host=host, extra_dejson=extra
    )


@pytest.mark.parametrize(
    ("connection", "options"),
    [
        (
            _connection("aws", "id", "key", region_name="eu-west-1", aws_session_token="t"),
            {"access_key_id": "id", "secret_access_key": "key", "region": "eu-west-1", "session_token": "t"},
        ),
        (
            _connection("aws", "id", "key", endpoint_url="http://minio:9000", requester_pays=True),
            {"endpoint": "http://minio:9000", "request_payer": "true", "allow_http": "true"},
        ),
        (
            _connection("aws", service_config={"s3": {"endpoint_url": "https://minio"}}),
            {"endpoint": "https://minio", "allow_http": None},
        ),
        (_connection("aws", config_kwargs={"signature_version": "unsigned"}), {"skip_signature": "true"}),
        (
            _connection("google_cloud_platform", extra__google_cloud_platform__keyfile_dict='{"a": 1}'),
            {"service_account_key": '{"a": 1}'},
        ),
        (_connection("google_cloud_platform", keyfile_dict={"a": 1}), {"service_account_key": '{"a": 1}'}),
        (_connection("google_cloud_platform", is_anonymous=True), {"skip_signature": "true"}),
        (
            _connection("wasb", "acct", "key"),
            {"storage_account_name": "acct", "storage_account_key": "key", "endpoint": None},
        ),
        (
            _connection("wasb", host="https://acct.blob.core.windows.net", sas_token="https://x/?sv=1&sig=2"),
            {"storage_account_name": "acct", "storage_sas_token": "sv=1&sig=2"},
        ),
        (
            _connection("wasb", connection_string="AccountName=acct;AccountKey=a2V5==;EndpointSuffix=x"),
            {"storage_account_name": "acct", "storage_account_key": "a2V5=="},
        ),
        (
            _connection("adls", "client", "password", "acct", tenant_id="tenant"),
            {
                "storage_account_name": "acct",
                "storage_client_id": "client",
                "storage_client_secret": "password",
                "storage_tenant_id": "tenant",
                "storage_account_key": None,
            },
        ),
    ],
)
def test_a_connection_is_read_as_the_hooks_of_its_type_read_it(connection, options):
    found = {
        key.partition("_")[2] if key != "allow_http" else key: v
        for key, v in options_of(connection).values.items()
    }

    assert {key: found.get(key) for key in options} == options
    assert "key" not in repr(options_of(connection)).replace("_key", "")


def test_a_key_file_of_google_travels_as_its_content(tmp_path):
    (tmp_path / "key.json").write_text('{"type": "service_account"}')

    found = options_of(_connection("google_cloud_platform", key_path=str(tmp_path / "key.json")))

    assert list(found.values.values()) == ['{"type": "service_account"}']
    with pytest.raises(ConfigurationError, match="keyfile_dict"):
        options_of(_connection("google_cloud_platform", key_path=str(tmp_path / "none.json")))


@pytest.mark.parametrize(
    ("connection", "named"),
    [
        (_connection("http"), "'http'"),
        (_connection("aws", role_arn="arn"), "role_arn"),
        (_connection("google_cloud_platform", impersonation_chain="me"), "impersonation_chain"),
        (_connection("wasb", workload_identity_tenant_id="t"), "workload_identity"),
    ],
)
def test_a_connection_that_the_readers_cannot_use_is_refused(connection, named):
    with pytest.raises(ConfigurationError, match=named) as refused:
        options_of(connection)

    assert "'lake'" in str(refused.value)


def test_a_url_of_another_account_than_the_connections_is_refused():
    secrets = SourceSecrets({"azure_storage_account_name": "mine", "azure_storage_account_key": "a2V5"})

    with pytest.raises(ConfigurationError, match="another account than 'mine'"):
        list(storage_of("abfss://lake@yours.dfs.core.windows.net/in", secrets).files())


# -- The same small set on the other stores --------------------------------------------------------------


def _as_google_is_asked(request):
    """Google's XML interface is S3's, but for the name of the condition."""
    signed = (
        b"authorization: AWS4-HMAC-SHA256 Credential=A/20260101/us-east-1/s3/aws4_request, Signature=1\r\n"
    )
    request = re.sub(rb"(?i)authorization: [^\r]*\r\n", b"", request)
    request = re.sub(rb"^([A-Z]+ \S+ HTTP/1.1\r\n)", rb"\1" + signed, request)
    return request.replace(b"x-goog-if-generation-match: 0", b"if-none-match: *")


@pytest.fixture
def google(service):
    """The S3 server as Google's XML interface: the emulators that can be had know the JSON one alone."""
    with wire_to(service.port) as wire:
        wire.edit = _as_google_is_asked
        service.client.create_bucket(Bucket="google")
        key = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
        url = f"http://127.0.0.1:{wire.port}"
        yield options_of(_connection("google_cloud_platform", keyfile_dict=key, endpoint_url=url))


@pytest.fixture(scope="module")
def azurite(tmp_path_factory):
    with azure_service(tmp_path_factory.mktemp("azurite")) as running:
        running.make("lake")
        yield running


@pytest.fixture
def azure(azurite):
    return azurite.options()


@pytest.mark.parametrize(
    ("url", "store"),
    [
        ("gs://google", "google"),
        pytest.param("az://lake", "azure", marks=pytest.mark.nightly),
        pytest.param(f"abfss://lake@{ACCOUNT}.dfs.core.windows.net", "azure", marks=pytest.mark.nightly),
    ],
)
def test_another_store_lists_reads_and_creates_as_s3_does(url, store, request, tmp_path):
    secrets = request.getfixturevalue(store)
    storage = storage_of(f"{url}/in", secrets)
    names = ["a b/c%20d.ndjson", "a b/ü.ndjson"]
    write_file(tmp_path / "a.ndjson", numbered_rows("a", range(150)))
    data = (tmp_path / "a.ndjson").read_bytes()

    assert [storage.create(name, data) for name in (*names, names[0])] == [True, True, False]
    (group,) = groups_of(FileSource(path=storage.root), secrets)
    assert [file.name for file in group.files] == sorted(one.partition("/")[2] for one in names)
    rows = rows_after(reader_of(FileSource(path=url).form), group.files[0], 70)
    assert [row["ID"] for _, row in rows] == list(range(70, 150))

    with storage.open(group.files[0].path, group.files[0].version, group.files[0].size) as stream:
        stream.seek(10)
        assert stream.read() == data[10:]
    storage.delete(names[0])
    with pytest.raises(FileNotFoundError):
        storage.read(names[0])
    assert storage.create(names[0], b"another\n")
    with (
        storage.open(group.files[0].path, group.files[0].version, group.files[0].size) as stream,
        pytest.raises(SourcePositionError, match="written again"),
    ):
        stream.read()
    with ThreadPoolExecutor(8) as writers:
        won = writers.map(lambda n: storage_of(f"{url}/in", secrets).create("log/1", b"%d" % n), range(8))
        assert sum(won) == 1
    for name in (*names, "log/1", "never there"):
        storage.delete(name)
    assert list(storage.files()) == []


@pytest.mark.nightly
def test_azure_is_read_by_a_shared_access_signature_whatever_the_environment_has(azurite, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", f"AAAA{KEY[4:]}")
    storage = storage_of("az://lake/signed", azurite.signed_options())

    assert storage.create("a b", b"1")
    assert [one.name for one in storage.files()] == ["a b"]
    assert storage.open(storage.path("a b")).read() == b"1"


@pytest.mark.nightly
def test_azure_names_what_it_refuses(azurite):
    wrong = azurite.options(key=f"AAAA{KEY[4:]}")

    with pytest.raises(SourceMissingError, match="az://nowhere"):
        list(storage_of("az://nowhere", azurite.options()).files())
    with pytest.raises(ConfigurationError, match="403") as refused:
        list(storage_of("az://lake", wrong).files())

    assert KEY[4:] not in str(refused.value)


def test_a_lost_log_of_objects_is_made_again(lake):
    for name in ("a/1.ndjson", "a/2.ndjson", "b/1.ndjson"):
        lake.put(name, b'{"ID": 1}\n{"ID": 2}\n')
    commits = {"a": LastCommit("p_src_a", UnitOffset(2, "2.ndjson", 1), 3, unchanged=True)}
    spec = FileSource(path=lake.url)
    made = rebuild(spec, "account/pipe", lake.secrets, commits)
    lake.put("a/0.ndjson", b'{"ID": 3}\n')

    source = open_source(spec, "fail", lake.secrets).for_target("account/pipe")
    partitions = {one.name: one for one in source.partitions()}
    position, binding = made.positions["a"]
    assert binding == partitions["a"].binding
    partitions["a"].check(position)
    loaded = {
        name: [bytes(part.body) for part in one.read(one.resume(at), BatchLimits())]
        for name, one, at in (("a", partitions["a"], position), ("b", partitions["b"], None))
    }
    assert loaded == {"a": [b'{"ID": 2}\n', b'{"ID": 3}\n'], "b": [b'{"ID": 1}\n{"ID": 2}\n']}

    with pytest.raises(SourcePositionError, match="rows were loaded"):
        rebuild(spec, "account/other", lake.secrets, {"a": replace(commits["a"], rows=9)})
