"""Every store of files does what a directory does; and what only Hadoop's file system has, by WebHDFS."""

import copy
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from threading import Barrier

import pytest

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.files.spec import AllFiles, FileSource
from airflow_provider_snowpipe.spark.sources.files.storage import storage_of
from airflow_provider_snowpipe.spark.sources.files.storage_options import options_of
from airflow_provider_snowpipe.spark.sources.registry import open_source
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import UnitOffset
from tests.azure_service import ACCOUNT, KEY, azure_service
from tests.disturbed_store import wire_to
from tests.fake_webhdfs import fake_webhdfs, web_connection
from tests.file_formats import numbered_rows, write_file
from tests.scripted_service import Reply, ScriptedService
from tests.source_log import groups_of
from tests.unit.spark.sources.files.conftest import Store, rows_after
from tests.waiting import wait_until

NAMES = ["a.ndjson", "a.ndjson.gz", "a.parquet", "a.orc", "a.avro"]
"""Each way to read a file; the other compressions and forms of lines are read as the first two are."""


@pytest.fixture(scope="module")
def azurite(tmp_path_factory):
    with azure_service(tmp_path_factory.mktemp("azurite")) as running:
        running.make("lake")
        yield running


def _as_google_is_asked(request):
    """Google's XML interface is S3's, but for the name of the condition."""
    key = b"Credential=A/20260101/us-east-1/s3/aws4_request, Signature=1"
    signed = b"authorization: AWS4-HMAC-SHA256 " + key + b"\r\n"
    request = re.sub(rb"(?i)authorization: [^\r]*\r\n", b"", request)
    request = re.sub(rb"^([A-Z]+ \S+ HTTP/1.1\r\n)", rb"\1" + signed, request)
    return request.replace(b"x-goog-if-generation-match: 0", b"if-none-match: *")


@pytest.fixture
def google(s3, bucket):
    """The S3 server as Google's XML interface: the emulators that can be had know the JSON one alone."""
    with wire_to(s3.port) as wire:
        wire.edit = _as_google_is_asked
        key = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
        extra = {"keyfile_dict": key, "endpoint_url": f"http://127.0.0.1:{wire.port}"}
        options = options_of(web_connection(None, None, "google_cloud_platform", **extra))
        yield Store(f"gs://{bucket}/in", options)


@pytest.fixture(
    params=[
        "s3",
        "webhdfs",
        pytest.param("gs", marks=pytest.mark.nightly),
        pytest.param("az://lake", marks=pytest.mark.nightly),
        pytest.param(f"abfss://lake@{ACCOUNT}.dfs.core.windows.net", marks=pytest.mark.nightly),
    ]
)
def store(request):
    def get(name):
        return request.getfixturevalue(name)

    if request.param == "s3":
        return Store(f"s3://{get('bucket')}/in", get("s3").options())
    if request.param == "webhdfs":
        return Store(f"{get('hdfs').url}/in")
    if request.param == "gs":
        return get("google")
    return Store(f"{request.param}/{abs(hash(request.node.name)):x}", get("azurite").options())


@pytest.mark.parametrize("name", NAMES)
def test_a_file_gives_the_rows_that_it_gives_on_disk_after_every_row(store, tmp_path, name):
    kind = name.split(".")[1]
    write_file(tmp_path / name, numbered_rows("a", range(150)))
    store.put(name, (tmp_path / name).read_bytes())
    (here,) = groups_of(FileSource(path=str(tmp_path), format=kind, pattern="*", partitions=AllFiles()))

    there, reader = store.file(name, format=kind)

    assert (there.size, there.path) == (here.files[0].size, f"{store.url}/{name}")
    whole = rows_after(reader, here.files[0], 0)
    assert len(whole) == 150
    for line in (0, 1, 69, 70, 71, 149, 150):
        assert rows_after(reader, there, line) == whole[line:]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_changes_between_listing_and_reading_is_refused(store, tmp_path, name):
    write_file(tmp_path / name, numbered_rows("a", range(150)))
    data = (tmp_path / name).read_bytes()
    for other in (b"{" + data[1:-1] + b" ", data + data, data[:-9], None):
        store.put(name, data)
        file, reader = store.file(name, format=name.split(".")[1])
        store.storage.delete(name)
        if other is not None:
            store.put(name, other)

        if other == data + data and name == "a.ndjson":  # lines were added: the listed ones are read
            assert len(rows_after(reader, file, 0)) == 150
            continue
        with pytest.raises(errors.SourcePositionError, match=name) as refused:
            rows_after(reader, file, 0)
        assert "in place" in str(refused.value) or "appended" in str(refused.value)


@pytest.mark.parametrize("name", ["a b%20q", "100%", "h#ash?m=1", "pl+us", "ü日本", "q'\"a&b;c,d=e@f$(!)"])
def test_a_file_is_created_listed_and_read_whatever_its_name_is(store, name):
    storage, whole = store.storage, f"{name}/{name}"
    assert [storage.create(whole, data) for data in (b"0123456789", b"2")] == [True, False]

    file, _ = store.file(whole)

    assert (file.path, file.size) == (f"{store.url}/{whole}", 10)
    found = storage.stat(file.path)
    assert (found.size, abs(found.modified_ns - file.modified_ns) < 1_000_000_000) == (10, True)
    assert storage.read(whole) == storage.open(file.path).read() == b"0123456789"
    assert [one.name for one in storage.below(name).files()] == [name]
    with storage.open(file.path, file.version, file.size) as stream:
        stream.seek(7)
        assert stream.read() == b"789"

    for gone in (whole, "never there"):
        storage.delete(gone)
    with pytest.raises(FileNotFoundError):
        storage.read(whole)


def test_a_file_that_grows_is_read_on_and_a_copy_is_another_one(store):
    spec = FileSource(path=store.url, format={"type": "ndjson", "growing": True})

    def lines(committed=None):
        source = open_source(spec, "fail", store.secrets).for_target("account/pipe")
        (partition,) = source.partitions()
        assert source.claim({"eu": partition}, {"eu": committed})
        parts = [*partition.read(partition.resume(committed), BatchLimits())]
        return b"".join(bytes(part.body) for part in parts), parts[-1].end

    store.put("eu/a.ndjson", b'{"N": 1}\n{"N"')
    first = UnitOffset(1, "a.ndjson", 1)
    assert lines() == (b'{"N": 1}\n', first)
    store.put("eu/a.ndjson", b'{"N": 1}\n{"N": 2}\n')
    store.put("eu/b.ndjson", b'{"N": 1}\n')
    read, end = lines(first)
    assert sorted(read.splitlines()) == [b'{"N": 1}', b'{"N": 2}']
    assert end == UnitOffset(3, "b.ndjson", 1)


def test_a_listing_goes_as_deep_as_it_is_asked_to(store, tmp_path):
    for storage in (store.storage, storage_of(str(tmp_path))):
        assert all(storage.create(name, b"x") for name in ("1", "a/2", "a/b/3", "a/b/c/4"))
        found = [sorted(one.name for one in storage.files(depth)) for depth in (1, 2, 3)]
        assert found == [["1"], ["1", "a/2"], ["1", "a/2", "a/b/3"]]


def test_one_of_eight_writers_creates_a_file(store):
    for number in range(5):
        begin = Barrier(8)

        def create(writer, number=number, begin=begin):
            storage = storage_of(store.url, store.secrets)
            begin.wait()
            return storage.create(f"log/{number}", str(writer).encode() * 1000)

        with ThreadPoolExecutor(8) as writers:
            won = list(writers.map(create, range(8)))

        assert won.count(True) == 1
        assert store.storage.read(f"log/{number}") == str(won.index(True)).encode() * 1000


PASSWORD = "canary-password"


@pytest.mark.nightly
def test_azure_is_read_by_a_shared_access_signature_whatever_the_environment_has(azurite, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", f"AAAA{KEY[4:]}")
    storage = storage_of("az://lake/signed", azurite.signed_options())
    assert storage.create("a b", b"1")
    assert [one.name for one in storage.files()] == ["a b"]
    assert storage.open(storage.path("a b")).read() == b"1"


@pytest.fixture
def storage(hdfs):
    return storage_of(f"{hdfs.url}/in")


def contents(hdfs, below="/"):
    return {path: one.data for path, one in hdfs.files.items() if path.startswith(below)}


def test_size_time_and_version_are_those_of_the_name_node(hdfs, storage):
    hdfs.put("/in/a", b"12345", modified_ms=1_795_915_304_856)
    (first,) = storage.files()
    hdfs.put("/in/a", b"54321", modified_ms=1_795_915_304_856)
    (second,) = storage.files()
    assert (first.size, first.modified_ns) == (5, 1_795_915_304_856_000_000)
    assert (second.size, second.modified_ns) == (first.size, first.modified_ns)
    assert second.version != first.version
    assert (storage.stat(storage.path("a")), storage.read("a")) == (second, b"54321")
    assert storage.open(storage.path("a"), second.version, 5).read(2) == b"54"
    hdfs.put("/in/b", b"")
    assert len({one.node for one in storage.files()}) == 2


def test_a_file_has_its_name_only_when_it_is_whole(hdfs, storage):
    seen = []
    hdfs.before_rename = lambda: seen.append(contents(hdfs))
    assert storage.create("log/1", b"all of it")
    ((path, data),) = seen[0].items()
    assert (PurePosixPath(path).parent, data) == (PurePosixPath("/in/log"), b"all of it")
    assert PurePosixPath(path).name.startswith(".")
    assert list(hdfs.files) == ["/in/log/1"]


@pytest.mark.parametrize("http_fs", [False, True])
def test_a_target_that_is_there_is_not_replaced(hdfs, storage, http_fs):
    hdfs.http_fs = http_fs
    before = {"/in/a": b"1", "/done/a": b"2", "/in/b/c": b"4"}
    for path, data in before.items():
        hdfs.put(path, data)

    with pytest.raises(FileExistsError):
        storage.move(storage.path("a"), f"{hdfs.url}/done/a")
    assert not storage.create("a", b"3")
    assert not storage.create("b", b"5")
    storage.move(storage.path("b/c"), f"{hdfs.url}/in/b/d")

    before["/in/b/d"] = before.pop("/in/b/c")
    assert contents(hdfs, "/in/") | contents(hdfs, "/done/") == before


class TestRefusals:
    def test_name_what_is_not_there(self, hdfs, storage):
        hdfs.put("/in2/a", b"")
        assert "does not exist" in _refused(
            lambda: list(storage.files()), errors.SourceMissingError, storage.root
        )
        lone = storage_of(f"{hdfs.url}/in2/a")
        assert "folder" in _refused(lambda: list(lone.files()), errors.SourceMissingError, lone.root)
        assert storage.names() == []
        storage.delete("a")
        for ask in (lambda: storage.stat(storage.path("a")), lambda: storage.read("a")):
            with pytest.raises(FileNotFoundError):
                ask()

    def test_are_worth_another_try_where_no_name_node_answers(self, hdfs):
        with fake_webhdfs() as other:
            storage = storage_of(f"{other.url}/in")
        path = storage.path("a")
        for ask in (
            lambda: list(storage.files()),
            lambda: storage.stat(path),
            lambda: storage.open(path, "1-2-3", 2).read(),
            lambda: storage.create("b", b"1"),
            lambda: storage.delete("a"),
            lambda: storage.move(path, storage.path("c")),
        ):
            assert "answer" in _refused(ask, errors.SourceUnavailableError, storage.root)

    def test_by_a_data_node_are_not_the_content_of_a_file(self, hdfs, storage):
        hdfs.put("/in/a", b"0123456789")
        stream = storage.open(storage.path("a"))
        hdfs.data_faults.append("IOException")
        text = _refused(stream.read, errors.SourceUnavailableError, storage.path("a"))
        assert "IOException" in text

    def test_show_no_token_for_a_data_node(self, hdfs, storage):
        hdfs.put("/in/a", b"1")
        hdfs.data_scheme = "swebhdfs"
        _refused(lambda: storage.read("a"), errors.SourceUnavailableError, storage.path("a"))


def _refused(ask, kind, url):
    with pytest.raises(kind) as refused:
        ask()
    text = str(refused.value)
    assert url in text
    assert len(text.split()) <= 60
    assert "canary" not in text
    assert "\n" not in text
    assert refused.value.__cause__ is None
    return text


@pytest.mark.parametrize(
    ("at_name_node", "at_data_node"),
    [
        (["503"] * 3, []),
        (["RetriableException"] * 2, ["502"]),
        ([], ["cut", "cut"]),
        (["StandbyException"], ["504"]),
    ],
)
def test_a_request_that_fails_is_repeated(hdfs, storage, at_name_node, at_data_node):
    hdfs.put("/in/a", b"0123456789")
    version = storage.stat(storage.path("a")).version
    hdfs.faults.extend(at_name_node)
    hdfs.data_faults.extend(at_data_node)
    assert storage.open(storage.path("a"), version, 10).read() == b"0123456789"
    assert not hdfs.faults
    assert not hdfs.data_faults


def test_lost_answers_do_not_make_two_winners_and_a_file_that_was_not_answered_is_written_again(
    hdfs, storage
):
    hdfs.lost = 1
    storage.create("log/1", b"first")  # it may not know that it has won
    hdfs.data_faults.append("lost")
    assert storage.create("log/2", b"first")
    assert not storage.create("log/1", b"second")
    assert contents(hdfs) == {"/in/log/1": b"first", "/in/log/2": b"first"}


def test_of_two_name_nodes_the_active_one_is_asked(hdfs):
    hdfs.put("/in/a", b"1")
    with fake_webhdfs() as standby:
        standby.faults.extend(["StandbyException"] * 100)
        options = options_of(web_connection(f"127.0.0.1:{standby.port},127.0.0.1:{hdfs.port}"))
        storage = storage_of("webhdfs://lake/in", options)
        assert [one.name for one in storage.files()] == ["a"]
        assert storage.read("a") == b"1"
        assert len(standby.requests) == 1


class TestConnection:
    @pytest.mark.parametrize(("login", "user"), [(None, "ambient"), ("loader", "loader")])
    def test_has_the_user_as_its_login_or_the_environment_has(self, hdfs, login, user):
        storage = storage_of(f"{hdfs.url}/in", hdfs.options(login=login))
        assert storage.create("a", b"1")
        assert storage.read("a") == b"1"
        assert {one[3] for one in hdfs.requests if one[0] == "name"} == {user}

    def test_has_a_password_for_the_name_node_alone_and_for_no_text(self, hdfs):
        hdfs.password = PASSWORD
        secrets = hdfs.options(login="loader", password=PASSWORD)
        storage = storage_of(f"{hdfs.url}/in", secrets)

        assert storage.create("a", b"1")
        copied = copy.deepcopy(storage)  # by what pickle asks for as well
        assert copied.read("a") == b"1"

        seen = {(one[0], one[3], one[4]) for one in hdfs.requests}
        assert seen == {("name", "", True), ("data", "", False)}
        for shown in (secrets, storage, copied, storage.open(storage.path("a"))):
            assert PASSWORD not in f"{shown!r} {shown}"
        wrong = storage_of(f"{hdfs.url}/in", hdfs.options(login="loader", password=f"{PASSWORD}!"))
        assert "login and password" in _refused(
            lambda: list(wrong.files()), errors.ConfigurationError, wrong.root
        )

    def test_is_read_as_airflows_hook_reads_it(self):
        for connection, options in [
            (web_connection("nn", "me", port=9870), {"hosts": "nn:9870", "user": "me"}),
            (web_connection("nn1, nn2:1", port=2), {"hosts": "nn1:2,nn2:1"}),
            (
                web_connection("knox", port=8443, password="key", schema="gateway/lake", use_ssl="True"),
                {"password": "key", "schema": "gateway/lake", "use_ssl": "true"},
            ),
            (web_connection("nn", use_ssl=False, verify=False), {"use_ssl": None, "verify": "False"}),
            (web_connection("nn", use_ssl=True, verify="/ca.pem"), {"use_ssl": "true", "verify": "/ca.pem"}),
            (web_connection("nn", conn_type="hdfs", port=8020), {"hosts": "nn:8020"}),
        ]:
            found = options_of(connection).values
            assert {key: found.get(f"hadoop_{key}") for key in options} == options

    @pytest.mark.filterwarnings("ignore:Unverified HTTPS")
    def test_of_a_gateway_asks_by_tls_at_its_path_and_for_a_proof(self, hdfs, tmp_path):
        with ScriptedService(tmp_path) as gateway:
            gateway.on("in", *[Reply(body='{"FileStatuses": {"FileStatus": []}}')] * 9)

            def ask(**extra):
                fields = {"port": gateway.url.rpartition(":")[2], "schema": "gateway/lake", "use_ssl": "true"}
                options = options_of(web_connection("127.0.0.1", **fields, **extra))
                return list(storage_of("webhdfs://lake/in", options).files())

            assert ask(verify=gateway.ca_bundle) == ask(verify=False) == []
            with pytest.raises(errors.ConfigurationError, match="certificate"):
                ask()

            assert {one.path for one in gateway.requests("in")} == {"/gateway/lake/webhdfs/v1/in"}

    def test_of_another_store_or_host_is_refused(self, hdfs):
        foreign = storage_of(f"{hdfs.url}/in", SourceSecrets({"aws_access_key_id": "canary"}))
        other = storage_of(f"{hdfs.url}/in", options_of(web_connection("other", port=9870)))
        assert "webhdfs" in _refused(lambda: list(foreign.files()), errors.ConfigurationError, hdfs.url)
        assert "other:9870" in _refused(lambda: list(other.files()), errors.ConfigurationError, hdfs.url)

    @pytest.mark.parametrize("fields", [{"login": "loader"}, {"password": PASSWORD}])
    def test_of_hdfs_with_an_identity_that_its_client_cannot_take_is_refused(self, monkeypatch, fields):
        pytest.importorskip("hdfs_native", reason="needs the extra hdfs")
        monkeypatch.setenv("HADOOP_USER_NAME", "ambient")
        connection = web_connection("nn", conn_type="hdfs", port=8020, **fields)
        storage = storage_of("hdfs://nn:8020/in", options_of(connection))
        text = _refused(lambda: list(storage.files()), errors.ConfigurationError, "hdfs://nn:8020")
        assert "HADOOP_USER_NAME" in text


def test_a_renamed_file_is_the_same_one_and_its_rows_are_not_loaded_again(hdfs):
    def run():
        source = open_source(FileSource(path=f"{hdfs.url}/in"), "fail").for_target("account/pipe")
        (partition,) = source.partitions()
        assert source.claim({"eu": partition}, {"eu": None})
        return sorted(bytes(part.body) for part in partition.read(partition.resume(None), BatchLimits()))

    hdfs.put("/in/eu/a.ndjson", b'{"N": 1}\n')
    assert run() == [b'{"N": 1}\n']
    hdfs.files["/in/eu/b.ndjson"] = hdfs.files.pop("/in/eu/a.ndjson")
    hdfs.put("/in/eu/a.ndjson", b'{"N": 2}\n', modified_ms=hdfs.files["/in/eu/b.ndjson"].modified_ms)

    assert run() == [b'{"N": 1}\n', b'{"N": 2}\n']
    assert contents(hdfs, "/in/_snowpipe/")


def test_the_next_files_are_asked_for_while_one_is_read_and_each_once(hdfs):
    lines = [b"%d\n" % number for number in range(10, 30)]
    for line in lines:
        hdfs.put(f"/in/eu/{int(line)}.ndjson", line)
    (partition,) = open_source(FileSource(path=f"{hdfs.url}/in"), "fail").partitions()

    def asked():
        return [one[:3] for one in hdfs.requests].count(("data", "GET", "OPEN"))

    parts = partition.read(partition.resume(None), BatchLimits())
    wait_until(lambda: asked() == 1)
    found = [bytes(next(parts).body)]
    wait_until(lambda: asked() == 11)
    assert found + [bytes(part.body) for part in parts] == lines
    assert asked() == 20
