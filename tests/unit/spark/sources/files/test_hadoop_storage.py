"""Files of Hadoop's file system, read by WebHDFS: the rows that a directory of the same files gives."""

import copy
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from threading import Barrier

import pytest

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.files.reader import reader_of
from airflow_provider_snowpipe.spark.sources.files.spec import AllFiles, FileSource
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
from tests.fake_webhdfs import fake_webhdfs, web_connection
from tests.file_formats import numbered_rows, write_file
from tests.jumping_time import JumpingTime
from tests.scripted_service import Reply, ScriptedService
from tests.source_log import groups_of
from tests.unit.spark.sources.files.conftest import rows_after

MODULE = "airflow_provider_snowpipe.spark.sources.files.hadoop_storage"
PASSWORD = "canary-password"


@pytest.fixture
def hdfs(monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "ambient")
    monkeypatch.setattr(f"{MODULE}.time", JumpingTime())
    with fake_webhdfs() as running:
        yield running


@pytest.fixture
def storage(hdfs):
    return storage_of(f"{hdfs.url}/in")


def file_of(hdfs, name, **options):
    spec = FileSource(path=f"{hdfs.url}/in", pattern="*", partitions=AllFiles(), **options)
    files = [one for group in groups_of(spec) for one in group.files]
    return reader_of(spec.form), next(one for one in files if one.name == name)


NAMES = ["a.ndjson", "a.csv", "a.parquet", "a.orc", "a.avro", "a.ndjson.gz"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_gives_the_rows_that_it_gives_on_disk_after_every_row(hdfs, tmp_path, name):
    write_file(tmp_path / name, numbered_rows("a", range(150)))
    hdfs.put(f"/in/{name}", (tmp_path / name).read_bytes())
    kind = name.split(".")[1]
    (here,) = groups_of(FileSource(path=str(tmp_path), format=kind, pattern="*", partitions=AllFiles()))

    reader, there = file_of(hdfs, name, format=kind)

    assert (there.size, there.path) == (here.files[0].size, f"{hdfs.url}/in/{name}")
    whole = rows_after(reader, here.files[0], 0)
    assert len(whole) == 150
    for line in (0, 1, 70, 149, 150):
        assert rows_after(reader, there, line) == whole[line:]


@pytest.mark.parametrize(
    "name", ["a b", "p%20q", "100%", "h#ash", "q?m=1", "pl+us", "ü", "q'\"", "a&b;c,d=e@f$(!)"]
)
def test_a_file_is_created_listed_read_and_moved_whatever_its_name_is(hdfs, storage, name):
    assert storage.create(f"{name}/{name}", b"{}\n")

    (listed,) = storage.files()

    assert listed.name == f"{name}/{name}"
    assert list(hdfs.files) == [f"/in/{name}/{name}"]
    assert storage.stat(storage.path(listed.name)) == listed
    assert storage.open(storage.path(listed.name)).read() == storage.read(listed.name) == b"{}\n"
    assert [one.name for one in storage.below(name).files()] == storage.below(name).names() == [name]
    assert list(storage.files(1)) == []
    storage.move(storage.path(listed.name), f"{hdfs.url}/done/{name}")
    assert list(hdfs.files) == [f"/done/{name}"]


def test_size_time_and_version_are_those_of_the_name_node(hdfs, storage):
    hdfs.put("/in/a", b"12345", modified_ms=1_795_915_304_856)

    (first,) = storage.files()
    hdfs.put("/in/a", b"54321", modified_ms=1_795_915_304_856)
    (second,) = storage.files()

    assert (first.size, first.modified_ns) == (5, 1_795_915_304_856_000_000)
    assert (second.size, second.modified_ns) == (first.size, first.modified_ns)
    assert second.version != first.version


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", ["same size", "longer", "shorter", "gone"])
def test_a_file_that_changes_between_listing_and_reading_is_refused(hdfs, tmp_path, name, change):
    write_file(tmp_path / name, numbered_rows("a", range(150)))
    data = (tmp_path / name).read_bytes()
    hdfs.put(f"/in/{name}", data)
    reader, file = file_of(hdfs, name, format=name.split(".")[1])
    changed = {
        "same size": b"{" + data[1:-1] + b" ",
        "longer": data + data,
        "shorter": data[:-9],
        "gone": None,
    }
    if changed[change] is None:
        del hdfs.files[f"/in/{name}"]
    else:
        hdfs.put(f"/in/{name}", changed[change], modified_ms=file.modified_ns // 1_000_000)

    if change == "longer" and name in ("a.ndjson", "a.csv"):  # lines were added: the listed ones are read
        assert len(rows_after(reader, file, 0)) == 150
        return
    with pytest.raises(SourcePositionError, match=name):
        rows_after(reader, file, 0)


@pytest.mark.parametrize("http_fs", [False, True])
def test_one_of_eight_writers_creates_a_file_and_nothing_else_is_left(hdfs, http_fs):
    hdfs.http_fs = http_fs
    begin = Barrier(8)

    def create(writer):
        storage = storage_of(f"{hdfs.url}/in")
        begin.wait()
        return storage.create("log/1", str(writer).encode() * 1000)

    with ThreadPoolExecutor(8) as writers:
        won = list(writers.map(create, range(8)))

    assert won.count(True) == 1
    assert {path: one.data for path, one in hdfs.files.items()} == {
        "/in/log/1": str(won.index(True)).encode() * 1000
    }


def test_a_file_has_its_name_only_when_it_is_whole(hdfs, storage):
    seen = []
    hdfs.before_rename = lambda: seen.append({path: one.data for path, one in hdfs.files.items()})

    assert storage.create("log/1", b"all of it")

    ((path, data),) = seen[0].items()
    assert (PurePosixPath(path).parent, data) == (PurePosixPath("/in/log"), b"all of it")
    assert PurePosixPath(path).name.startswith(".")


def test_a_target_that_is_there_is_not_replaced(hdfs, storage):
    hdfs.put("/in/a", b"1")
    hdfs.put("/done/a", b"2")

    with pytest.raises(FileExistsError):
        storage.move(storage.path("a"), f"{hdfs.url}/done/a")

    assert {path: one.data for path, one in hdfs.files.items()} == {"/in/a": b"1", "/done/a": b"2"}
    assert not storage.create("a", b"3")
    hdfs.put("/in/b/c", b"4")
    assert not storage.create("b", b"5")
    assert {path: one.data for path, one in hdfs.files.items() if path.startswith("/in/")} == {
        "/in/a": b"1",
        "/in/b/c": b"4",
    }


# -- What the cluster refuses, and what it does not answer -----------------------------------------------


def _requests(storage):
    yield lambda: list(storage.files())
    yield lambda: storage.stat(storage.path("a"))
    yield lambda: storage.open(storage.path("a"), "1-2-3", 2).read()
    yield lambda: storage.create("b", b"1")
    yield lambda: storage.delete("a")
    yield lambda: storage.move(storage.path("a"), storage.path("c"))


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


def test_what_is_not_there_is_named(hdfs, storage):
    hdfs.put("/in2/a", b"")

    assert "does not exist" in _refused(lambda: list(storage.files()), SourceMissingError, storage.root)
    lone = storage_of(f"{hdfs.url}/in2/a")
    assert "folder" in _refused(lambda: list(lone.files()), SourceMissingError, lone.root)
    assert storage.names() == []
    storage.delete("a")
    for ask in (lambda: storage.stat(storage.path("a")), lambda: storage.read("a")):
        with pytest.raises(FileNotFoundError):
            ask()


def test_a_refused_permission_names_the_user_and_where_to_set_it(hdfs, storage):
    hdfs.put("/in/a", b"1")
    hdfs.allowed = "somebody".__eq__

    for ask in _requests(storage):
        text = _refused(ask, ConfigurationError, storage.root)
        assert "user=ambient" in text
        assert "HADOOP_USER_NAME" in text


def test_a_cluster_that_asks_for_kerberos_is_named(hdfs, storage, monkeypatch):
    monkeypatch.setitem(sys.modules, "requests_kerberos", None)
    hdfs.kerberos = True

    for ask in _requests(storage):
        assert "extra kerberos" in _refused(ask, ConfigurationError, storage.root)


def test_a_name_node_that_does_not_answer_is_worth_another_try(hdfs):
    with fake_webhdfs() as other:
        storage = storage_of(f"{other.url}/in")

    for ask in _requests(storage):
        assert "answer" in _refused(ask, SourceUnavailableError, storage.root)


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


def test_an_error_of_a_data_node_is_not_the_content_of_a_file(hdfs, storage):
    hdfs.put("/in/a", b"0123456789")
    stream = storage.open(storage.path("a"))
    hdfs.data_faults.append("IOException")

    text = _refused(stream.read, SourceUnavailableError, storage.path("a"))

    assert "IOException: as the test says" in text


def test_a_lost_answer_to_a_rename_does_not_make_two_winners(hdfs, storage):
    hdfs.lost = 1

    storage.create("log/1", b"first")  # it may not know that it has won
    assert not storage.create("log/1", b"second")

    assert {path: one.data for path, one in hdfs.files.items()} == {"/in/log/1": b"first"}


def test_a_file_whose_writing_was_not_answered_is_written_again(hdfs, storage):
    hdfs.data_faults.append("lost")

    assert storage.create("log/1", b"first")

    assert {path: one.data for path, one in hdfs.files.items()} == {"/in/log/1": b"first"}


def test_a_token_for_a_data_node_is_in_no_text(hdfs, storage):
    hdfs.put("/in/a", b"1")
    hdfs.data_scheme = "swebhdfs"

    _refused(lambda: storage.read("a"), SourceUnavailableError, storage.path("a"))


def test_of_two_name_nodes_the_active_one_is_asked(hdfs):
    hdfs.put("/in/a", b"1")
    with fake_webhdfs() as standby:
        standby.faults.extend(["StandbyException"] * 100)
        options = options_of(web_connection(f"127.0.0.1:{standby.port},127.0.0.1:{hdfs.port}"))
        storage = storage_of("webhdfs://lake/in", options)

        assert [one.name for one in storage.files()] == ["a"]
        assert storage.read("a") == b"1"

        assert len(standby.requests) == 1


# -- Who asks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connection", "user"), [({}, "ambient"), ({"login": "loader"}, "loader")], ids=["ambient", "login"]
)
def test_the_user_is_the_login_of_the_connection_or_that_of_the_environment(hdfs, connection, user):
    storage = storage_of(f"{hdfs.url}/in", hdfs.options(**connection))

    assert storage.create("a", b"1")
    assert storage.read("a") == b"1"

    assert {one[3] for one in hdfs.requests if one[0] == "name"} == {user}


def test_a_password_goes_to_the_name_node_alone_and_is_in_no_text(hdfs):
    hdfs.password = PASSWORD
    secrets = hdfs.options(login="loader", password=PASSWORD)
    storage = storage_of(f"{hdfs.url}/in", secrets)

    assert storage.create("a", b"1")
    copied = copy.deepcopy(storage)  # by what pickle asks for as well
    assert copied.read("a") == b"1"

    assert {(one[0], one[3], one[4]) for one in hdfs.requests} == {("name", "", True), ("data", "", False)}
    for shown in (secrets, storage, copied, storage.open(storage.path("a"))):
        assert PASSWORD not in f"{shown!r} {shown}"
    wrong = storage_of(f"{hdfs.url}/in", hdfs.options(login="loader", password=f"{PASSWORD}!"))
    assert "login and password" in _refused(lambda: list(wrong.files()), ConfigurationError, wrong.root)


@pytest.mark.parametrize(
    ("connection", "options"),
    [
        (web_connection("nn", "me", port=9870), {"hosts": "nn:9870", "user": "me"}),
        (web_connection("nn1, nn2:1", port=2), {"hosts": "nn1:2,nn2:1"}),
        (
            web_connection("knox", "me", port=8443, password="key", schema="gateway/lake", use_ssl="True"),
            {"password": "key", "schema": "gateway/lake", "use_ssl": "true"},
        ),
        (web_connection("nn", use_ssl=False, verify=False), {"use_ssl": None, "verify": "False"}),
        (web_connection("nn", use_ssl=True, verify="/ca.pem"), {"use_ssl": "true", "verify": "/ca.pem"}),
        (web_connection("nn", conn_type="hdfs", port=8020), {"hosts": "nn:8020"}),
    ],
)
def test_a_connection_is_read_as_airflows_hook_reads_it(connection, options):
    found = options_of(connection).values

    assert {key: found.get(f"hadoop_{key}") for key in options} == options


@pytest.mark.filterwarnings("ignore:Unverified HTTPS")
def test_a_gateway_is_asked_by_tls_at_its_path_and_has_to_prove_itself(hdfs, tmp_path):
    with ScriptedService(tmp_path) as gateway:
        gateway.on("in", *[Reply(body='{"FileStatuses": {"FileStatus": []}}')] * 9)

        def ask(**extra):
            fields = {"port": gateway.url.rpartition(":")[2], "schema": "gateway/lake", "use_ssl": "true"}
            options = options_of(web_connection("127.0.0.1", **fields, **extra))
            return list(storage_of("webhdfs://lake/in", options).files())

        assert ask(verify=gateway.ca_bundle) == ask(verify=False) == []
        with pytest.raises(ConfigurationError, match="certificate"):
            ask()

        assert {one.path for one in gateway.requests("in")} == {"/gateway/lake/webhdfs/v1/in"}


@pytest.mark.parametrize("extra", [{"cookies": {"a": "b"}}, {"headers": {"a": "b"}}, {"proxy_user": "me"}])
def test_what_the_client_does_not_use_is_refused(extra):
    with pytest.raises(ConfigurationError, match=next(iter(extra))):
        options_of(web_connection("nn", **extra))


def test_a_connection_of_another_store_or_host_is_refused(hdfs):
    foreign = storage_of(f"{hdfs.url}/in", SourceSecrets({"aws_access_key_id": "canary"}))
    other = storage_of(f"{hdfs.url}/in", options_of(web_connection("other", port=9870)))

    assert "webhdfs" in _refused(lambda: list(foreign.files()), ConfigurationError, hdfs.url)
    assert "other:9870" in _refused(lambda: list(other.files()), ConfigurationError, hdfs.url)


@pytest.mark.parametrize("path", ["hdfs:///in", "webhdfs://", "webhdfs://nn:9870//in", "hdfs://canary@nn/in"])
def test_a_url_without_a_host_or_with_a_login_is_refused_when_the_dag_is_parsed(path):
    with pytest.raises(ConfigurationError, match=r"host:port|before @") as refused:
        FileSource(path=path)

    assert "canary" not in str(refused.value)


# -- hdfs:// needs a library ------------------------------------------------------------------------------


def test_without_its_library_hdfs_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    storage = storage_of("hdfs://nn:8020/in")

    text = _refused(lambda: list(storage.files()), ConfigurationError, "hdfs://nn:8020")

    assert "airflow-provider-snowpipe[hdfs]" in text


@pytest.mark.parametrize("fields", [{"login": "loader"}, {"password": PASSWORD}])
def test_hdfs_refuses_an_identity_that_its_client_cannot_take(monkeypatch, fields):
    pytest.importorskip("hdfs_native", reason="needs the extra hdfs")
    monkeypatch.setenv("HADOOP_USER_NAME", "ambient")
    connection = web_connection("nn", conn_type="hdfs", port=8020, **fields)
    storage = storage_of("hdfs://nn:8020/in", options_of(connection))

    assert "HADOOP_USER_NAME" in _refused(lambda: list(storage.files()), ConfigurationError, "hdfs://nn:8020")


# -- The source log there ---------------------------------------------------------------------------------


class Run:
    """One run of a source, and the rows of its partition."""

    def __init__(self, hdfs, **options):
        spec = FileSource(path=f"{hdfs.url}/in", **options)
        self.source = open_source(spec, "fail").for_target("account/pipe")
        (self.partition,) = self.source.partitions()
        assert self.source.claim({"eu": self.partition}, {"eu": None})
        parts = list(self.partition.read(self.partition.resume(None), BatchLimits()))
        self.end = parts[-1].end
        self.rows = [json.loads(line)["N"] for part in parts for line in bytes(part.body).splitlines()]


def test_a_renamed_file_is_the_same_one_and_its_rows_are_not_loaded_again(hdfs):
    hdfs.put("/in/eu/a.ndjson", b'{"N": 1}\n')
    assert Run(hdfs).rows == [1]
    hdfs.files["/in/eu/b.ndjson"] = hdfs.files.pop("/in/eu/a.ndjson")
    hdfs.put("/in/eu/a.ndjson", b'{"N": 2}\n', modified_ms=hdfs.files["/in/eu/b.ndjson"].modified_ms)

    assert sorted(Run(hdfs).rows) == [1, 2]
    assert any(path.startswith("/in/_snowpipe/") for path in hdfs.files)


@pytest.mark.parametrize("after", ["archive", "delete"])
def test_committed_files_are_archived_or_deleted(hdfs, after):
    hdfs.put("/in/eu/a.ndjson", b'{"N": 1}\n')
    hdfs.put("/done/eu/a.ndjson", b"an older one")
    options = {"archive_path": f"{hdfs.url}/done"} if after == "archive" else {}
    run = Run(hdfs, after_commit=after, log_path=f"{hdfs.url}/log", **options)

    run.source.mark_complete({"eu": run.end})

    files = {path: one.data for path, one in hdfs.files.items() if not path.startswith("/log/")}
    moved = {"/done/eu/a.ndjson.1": b'{"N": 1}\n'} if after == "archive" else {}
    assert files == {"/done/eu/a.ndjson": b"an older one", **moved}
