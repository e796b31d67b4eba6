"""Files in a real HDFS through the operator: Hadoop's mini cluster, by WebHDFS and by its own protocol."""

import getpass
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sources import FileSource
from airflow_provider_snowpipe.spark.sources.files.storage import storage_of
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from tests.airflow_connections import SetConnection
from tests.file_pipes import task_context
from tests.local_connection import connect, ids, make_table
from tests.local_service import LocalService
from tests.yarn_cluster import mini_cluster

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The URLs of one file system, by scheme."""
    folder = tmp_path_factory.mktemp("hdfs")
    with mini_cluster(folder, "MiniHdfs", folder) as (_, ports):
        rpc, http = ports.split(":")
        yield {"webhdfs": f"webhdfs://localhost:{http}", "hdfs": f"hdfs://localhost:{rpc}"}


@pytest.fixture(params=["webhdfs", "hdfs"])
def url(request: pytest.FixtureRequest, cluster: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of its own, whose user may write there."""
    if request.param == "hdfs":
        pytest.importorskip("hdfs_native", reason="needs the extra hdfs")
    monkeypatch.setenv("HADOOP_USER_NAME", getpass.getuser())  # which has started the cluster
    return f"{cluster[request.param]}/{request.param}"


def _body(kind: str, numbers: range) -> bytes:
    rows = [{"ID": number, "NAME": "x"} for number in numbers]
    if kind == "ndjson":
        return "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out, row_group_size=100)
    return out.getvalue()


@pytest.mark.parametrize(("url", "kind"), [("webhdfs", "ndjson"), ("hdfs", "parquet")], indirect=["url"])
def test_files_are_loaded_once_and_then_from_where_they_were_left(
    local_service: LocalService, set_connection: SetConnection, url: str, kind: Literal["ndjson", "parquet"]
) -> None:
    root, scheme = f"{url}/{kind} files", url.partition(":")[0]
    storage, table = storage_of(root), make_table(local_service, f"FROM_{scheme}_{kind}".upper())
    set_connection("spark_default", conn_type="spark", host="local[2]")
    for file in range(3):
        assert storage.create(f"eu/{file}.{kind}", _body(kind, range(file * 500, file * 500 + 500)))

    def run() -> Any:
        operator = SnowpipeStreamOperator(
            task_id="load",
            source=FileSource(
                path=root, format=kind, after_commit="archive", archive_path=f"{url}/done {kind}"
            ),
            table=table,
            snowflake_conn_id=connect(local_service, set_connection),
            channel_prefix=f"{scheme}_{kind}",
        )
        return operator.execute(task_context())["rows"]

    assert (run(), ids(local_service, table)) == (1500, list(range(1500)))
    assert storage.create(f"eu/0a.{kind}", _body(kind, range(1500, 1600)))

    assert run() == 100
    assert ids(local_service, table) == list(range(1600))
    assert {one.name.partition("/")[0] for one in storage.files()} == {"_snowpipe"}
    assert len(list(storage_of(f"{url}/done {kind}").files())) == 4


def test_what_hadoop_refuses_and_changes_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a b/c%20d", "a b/ü", "h#ash", "q?m=1", "pl+us"]
    storage = storage_of(f"{url}/names")
    assert [storage.create(one, one.encode()) for one in (*names, names[0])] == [True] * 5 + [False]
    with ThreadPoolExecutor(8) as racing:
        won = racing.map(lambda writer: storage_of(f"{url}/race").create("1", b"%d" % writer), range(8))
        assert sum(won) == 1
    listed = {one.name: one for one in storage.files()}
    assert {one: storage.open(storage.path(one)).read() for one in listed} == {
        one: one.encode() for one in names
    }
    storage.move(storage.path("h#ash"), f"{url}/moved/h#ash")
    with pytest.raises(FileExistsError):
        storage.move(storage.path("q?m=1"), storage.path("pl+us"))

    (moved,) = storage_of(f"{url}/moved").files()
    assert (moved.version, moved.modified_ns) == (listed["h#ash"].version, listed["h#ash"].modified_ns)
    stream = storage.open(storage.path("pl+us"), listed["pl+us"].version, 5)
    storage.delete("pl+us")
    assert storage.create("pl+us", b"other")
    with pytest.raises(SourcePositionError, match="written again"):
        stream.read()
    monkeypatch.setenv("HADOOP_USER_NAME", "nobody")
    with pytest.raises(ConfigurationError, match="user=nobody"):
        storage_of(f"{url}/names").create("b", b"1")
