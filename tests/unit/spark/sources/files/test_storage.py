"""Files of an object store on a real S3 server, and the connections of all stores."""

import copy
import os
import random
import re
import time

import pytest
import requests

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.files.spec import AllFiles, ByKey, ByName, FileSource
from airflow_provider_snowpipe.spark.sources.files.storage import storage_of
from airflow_provider_snowpipe.spark.sources.files.storage_options import options_of
from airflow_provider_snowpipe.streaming import errors
from tests.disturbed_store import wire_to
from tests.fake_webhdfs import web_connection
from tests.file_formats import numbered_rows, write_file
from tests.refusals import refused
from tests.s3_service import KEY_ID, SECRET
from tests.source_log import groups_of
from tests.unit.spark.sources.files.conftest import Store, rows_after

LINE = b'{"ID": 1}\n'


@pytest.fixture
def lake(s3, bucket):
    return Store(f"s3://{bucket}/in", s3.options())


@pytest.fixture
def put(s3, bucket):
    return lambda name, data=LINE, above="in": s3.client.put_object(
        Bucket=bucket, Key=f"{above}/{name}", Body=data
    )


NAMES = ["day=1/a.ndjson", "day=x%2Fy/a.ndjson", "day=2/.a.ndjson", "_snowpipe/a.ndjson"]
NAMES += ["top.ndjson", "other.ndjson", ".top.ndjson", "logs/log-0123456789abcdef/e000000000001.parquet"]


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (NAMES[:4], {"partitions": ByKey("day", as_columns=True)}),
        (NAMES, {"partitions": AllFiles(), "pattern": "**/*"}),
        (NAMES, {"partitions": ByName(r"(?P<partition>[a-z]+)\.ndjson"), "pattern": "[!x]*.ndj?on"}),
    ],
)
def test_a_bucket_is_split_as_a_directory_is(lake, put, tmp_path, names, options):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(LINE)
        put(name)
    put("day=1/a.ndjson", above="in2")

    def named(groups):
        return {name: [(file.name, file.values) for file in files] for name, files in groups.items()}

    here = {one.partition: one.files for one in groups_of(FileSource(path=str(tmp_path), **options))}

    assert here
    assert not any(re.search("_snowpipe|logs/", str(files)) for files in named(here).values())
    assert named(lake.groups(**options)) == named(here)


@pytest.mark.parametrize("name", ["a//b", "a/../b", "/a"])
def test_a_name_that_the_client_cannot_ask_for_is_refused_with_its_remedy(lake, put, name):
    put(name)
    with pytest.raises(errors.ConfigurationError, match="rename") as wrong:
        lake.groups(partitions=AllFiles(), pattern="**/*")
    assert lake.url in str(wrong.value)


def test_a_missing_bucket_is_named(lake):
    with pytest.raises(errors.SourceMissingError, match="s3://nowhere/in"):
        list(storage_of("s3://nowhere/in", lake.secrets).files())
    with pytest.raises(FileNotFoundError):
        storage_of("s3://nowhere/in", lake.secrets).create("a", b"1")


def test_more_objects_than_a_page_are_listed_each_once(lake, put, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")
    names = [f"{n:02}.ndjson" for n in range(25)]
    for name in names:
        put(name)
    assert [one.name for one in lake.storage.files()] == names


def test_an_object_that_is_overwritten_while_it_is_read_gives_nothing_of_the_other_one(lake, put):
    data = random.Random(7).randbytes(40 << 20)
    put("big", data)
    path = f"{lake.url}/big"
    with lake.storage.open(path, lake.storage.stat(path).version) as stream:
        assert stream.read(10) == data[:10]
        put("big", bytes(len(data)))
        stream.seek(-5, os.SEEK_END)
        with pytest.raises(errors.SourcePositionError, match="written again"):
            stream.read()


def test_any_part_of_an_object_is_what_is_stored_there(lake, put):
    chance = random.Random(7)
    data = chance.randbytes(37_000_001)
    put("big", data)

    with lake.storage.open(f"{lake.url}/big") as stream:
        for _ in range(15):
            at = chance.randrange(len(data) + 9)
            stream.seek(at)
            for size in chance.choices([0, 1, 5, 1000, 4 << 20, 9 << 20], k=chance.randrange(1, 6)):
                assert stream.read(size) == data[at : at + size]
                at = min(at + size, max(len(data), at))
        stream.seek(-3, 2)
        assert (stream.read(), stream.read(5), stream.seek(0)) == (data[-3:], b"", 0)
        assert stream.read() == data


def _secrets_in(text):
    return [secret for secret in (SECRET, KEY_ID) if secret in text]


def test_a_key_that_is_refused_is_in_no_text(s3, lake, put):
    put("a.ndjson")
    file, _ = lake.file("a.ndjson")
    url = f"http://{s3.endpoint}/moto-api/reset-auth"
    requests.post(url, data=b"0", timeout=60).raise_for_status()
    try:
        for error in refused(
            errors.ConfigurationError,
            lambda ask: ask(),
            [
                lambda: list(lake.storage.files()),
                lambda: lake.storage.stat(file.path),
                lambda: lake.storage.open(file.path, file.version, file.size).read(),
                lambda: lake.storage.create("b", b"1"),
                lambda: lake.storage.delete("a.ndjson"),
            ],
            *("403 Forbidden", lake.url, "conn_id"),
        ):
            assert (_secrets_in(str(error)), error.__cause__) == ([], None)
    finally:
        requests.post(url, data=b"inf", timeout=60).raise_for_status()


def test_keys_are_in_no_form_of_a_storage_that_people_see(lake, put):
    put("a.ndjson")
    file, _ = lake.file("a.ndjson")
    copied = copy.deepcopy(file)  # by what pickle asks for as well
    assert copied.storage.read("a.ndjson") == LINE
    opened = lake.storage.open(file.path)
    for shown in (lake.storage, copied.storage, copied, lake.storage.below("x"), opened):
        assert _secrets_in(f"{shown!r} {shown}") == []


@pytest.mark.parametrize("token", [None, "token-of-the-connection"])
def test_the_keys_of_a_connection_are_not_mixed_with_the_environment(s3, lake, monkeypatch, token):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-the-environment")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    seen = []
    with wire_to(s3.port) as wire:
        wire.edit = lambda request: seen.append(request) or request
        list(storage_of(lake.url, s3.options(wire.port, aws_session_token=token)).files())
    (request,) = seen
    assert f"Credential={KEY_ID}/".encode() in request
    assert re.findall(rb"(?i)x-amz-security-token: (\S+)", request) == ([token.encode()] if token else [])


class TestWireThatIsSlowCutOrLost:
    @pytest.fixture
    def wire(self, s3):
        with wire_to(s3.port) as made:
            yield made

    @pytest.fixture
    def through(self, s3, wire, lake, put, tmp_path):
        """Files of a few hundred kilobytes that nothing can compress, as they are listed through the wire."""

        def make(name):
            rows = numbered_rows("a", range(2000))
            for row in rows:
                row["FILE"] = random.Random(row["ID"]).randbytes(150).hex()
            write_file(tmp_path / name, rows)
            put(name, (tmp_path / name).read_bytes())
            lake.secrets = s3.options(wire.port, config_kwargs={"read_timeout": 1})
            return lake.file(name, format=name.split(".")[1])

        return make

    @pytest.mark.parametrize(
        ("name", "fault"),
        [
            *(("a.ndjson", fault) for fault in ("503", "closed", "cut", "lost")),
            *((f"a.{ending}", "cut") for ending in ("ndjson.gz", "parquet", "orc", "avro")),
        ],
    )
    def test_has_its_failed_requests_repeated(self, wire, through, name, fault):
        file, reader = through(name)
        wire.disturb(fault, 1 if fault == "lost" else 3, "GET")
        rows = rows_after(reader, file, 0)
        assert [row["ID"] for _, row in rows] == list(range(2000))
        assert not wire.faults

    @pytest.mark.parametrize(
        ("name", "fault"), [("a.ndjson.gz", "503"), ("a.parquet", "closed"), ("a.orc", "503")]
    )
    def test_that_fails_again_and_again_is_named_and_worth_another_try(self, wire, through, name, fault):
        file, reader = through(name)
        wire.disturb(fault, 1000, "GET")
        with pytest.raises(errors.SourceUnavailableError, match=name) as failed:
            rows_after(reader, file, 0)
        text = str(failed.value)
        assert failed.value.retryable
        assert ("request get" in text, "executors" in text, _secrets_in(text)) == (True, True, [])
        assert len(text.split()) <= 60

    def test_ends_the_listing_within_its_time(self, wire, through):
        file, _ = through("a.ndjson")
        wire.disturb("503", 1000)
        begin = time.monotonic()
        with pytest.raises(errors.SourceUnavailableError, match=r"503.*\d+ retries"):
            list(file.storage.files())
        assert time.monotonic() - begin < 90


GOOGLE = "google_cloud_platform"


def _connection(conn_type, login=None, password=None, host=None, **extra):
    return web_connection(host, login, conn_type, password=password, **extra)


def test_a_connection_is_read_as_the_hooks_of_its_type_read_it():
    for connection, options in [
        (
            _connection("aws", "id", "key", region_name="eu-west-1", aws_session_token="t"),
            {"access_key_id": "id", "secret_access_key": "key", "region": "eu-west-1", "session_token": "t"},
        ),
        (
            _connection("aws", "id", "key", endpoint_url="http://minio:9000", requester_pays=True),
            {"endpoint": "http://minio:9000", "request_payer": "true", "allow_http": "true"},
        ),
        (_connection("aws", config_kwargs={"signature_version": "unsigned"}), {"skip_signature": "true"}),
        (_connection("aws", config_kwargs={"read_timeout": 9}), {"timeout": "9 seconds"}),
        (_connection(GOOGLE, extra__google_cloud_platform__keyfile_dict="{}"), {"service_account_key": "{}"}),
        (_connection(GOOGLE, keyfile_dict={"a": 1}), {"service_account_key": '{"a": 1}'}),
        (_connection(GOOGLE, is_anonymous=True), {"skip_signature": "true"}),
        (
            _connection("wasb", host="https://acct.blob.core.windows.net", sas_token="https://x/?sv=1&sig=2"),
            {"storage_account_name": "acct", "storage_sas_token": "sv=1&sig=2"},
        ),
        (
            _connection("wasb", connection_string="AccountName=acct;AccountKey=a2V5==;EndpointSuffix=x"),
            {"storage_account_name": "acct", "storage_account_key": "a2V5=="},
        ),
        (
            _connection("adls", "client", "password", "acct", tenant_id="t"),
            {"storage_account_name": "acct", "storage_client_id": "client", "storage_account_key": None}
            | {"storage_client_secret": "password", "storage_tenant_id": "t"},
        ),
    ]:
        given = options_of(connection)
        found = {re.sub("^(aws|azure|google)_", "", key): value for key, value in given.values.items()}
        assert {key: found.get(key) for key in options} == options
        assert "key" not in repr(given).replace("_key", "")


def test_a_key_file_of_google_travels_as_its_content(tmp_path):
    (tmp_path / "key.json").write_text('{"type": "service_account"}')
    found = options_of(_connection(GOOGLE, key_path=str(tmp_path / "key.json")))
    assert list(found.values.values()) == ['{"type": "service_account"}']
    with pytest.raises(errors.ConfigurationError, match="keyfile_dict"):
        options_of(_connection(GOOGLE, key_path=str(tmp_path / "none.json")))


def test_a_connection_that_the_readers_cannot_use_is_refused():
    for connection, word in [
        (_connection("http"), "'http'"),
        (_connection("aws", role_arn="arn"), "role_arn"),
        (_connection(GOOGLE, impersonation_chain="me"), "impersonation_chain"),
        (_connection("wasb", workload_identity_tenant_id="t"), "workload_identity"),
    ]:
        refused(errors.ConfigurationError, options_of, [connection], word, "'lake'")
    secrets = SourceSecrets({"azure_storage_account_name": "mine", "azure_storage_account_key": "a2V5"})
    with pytest.raises(errors.ConfigurationError, match="'mine'"):
        list(storage_of("abfss://lake@yours.dfs.core.windows.net/in", secrets).files())
