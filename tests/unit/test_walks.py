"""How many of our functions, files and nested calls lie on three ways through the package."""

import datetime as dt
import sys
import threading
import traceback
from pathlib import Path

import airflow_provider_snowpipe
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.spark.task.sink import PartitionWork, SinkSettings, load_partition
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.airflow_connections import PAT
from tests.fake_account import FakeAccount
from tests.fake_snowpipe import PIPE, URL, snowpipe
from tests.memory_source import MemoryPartition, rows
from tests.stream_worker import TaskInstance
from tests.unit.operators.account_in_task import install, task_context

__all__ = ["snowpipe"]

_PACKAGE = str(Path(airflow_provider_snowpipe.__file__).parent)


class Walk:
    """The functions of ours that were called, by file and name, and how deep they were in each other."""

    def __init__(self):
        self.functions, self.depth = set(), 0

    def see(self, frame, event, _):
        """A profile function: see ``sys.setprofile``."""
        if event == "call" and _is_function_of_ours(frame):
            code = frame.f_code
            self.functions.add((code.co_filename, code.co_qualname, code.co_firstlineno))
            callers = (one for one, _ in traceback.walk_stack(frame))
            self.depth = max(self.depth, sum(map(_is_function_of_ours, callers)))


def _is_function_of_ours(frame):
    """Comprehensions and what dataclasses write themselves are no functions."""
    code = frame.f_code
    return code.co_filename.startswith(_PACKAGE) and not code.co_name.startswith("<")


def walked(way):
    """Go a way twice, and trace the second time: imports and caches are not of the way."""
    way()
    walk = Walk()
    threading.setprofile(walk.see)
    sys.setprofile(walk.see)
    try:
        way()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return walk


def require(walk, name, *, through, functions, files, depth):
    """Print the numbers of a way, and compare them with what they may be at most."""
    of_files = {Path(file).relative_to(_PACKAGE).as_posix() for file, _, _ in walk.functions}
    found, most = (len(walk.functions), len(of_files), walk.depth), (functions, files, depth)
    print(f"{name}: {found} of at most {most}", *sorted(walk.functions), sep="\n")
    assert through in of_files
    assert all(one <= limit for one, limit in zip(found, most, strict=True)), (name, found, most)


def test_row_to_commit(snowpipe):
    limits = BatchLimits(rows=2, age_seconds=30, requests_per_second=10_000)
    settings = SinkSettings(URL, None, PIPE, wait_for_commit=True, commit_timeout=60.0, limits=limits)
    partition = MemoryPartition("p", rows(1))
    channels = iter(("c1", "c2"))

    def way():
        work = PartitionWork(next(channels), partition, None, partition.resume(None))
        load_partition(settings, snowpipe.scoped_token(None), work)

    require(walked(way), "row to commit", through="streaming/channel.py", functions=79, files=13, depth=9)


def test_sensor_poke(snowpipe, set_connection):
    snowpipe.channel("c", committed="9")
    extra = {"auth": "programmatic_access_token", "database": "DB"}
    conn_id = set_connection("fake", conn_type="snowpipe", host=URL, password=PAT, schema="S", extra=extra)
    sensor = SnowpipeCommitSensor(
        task_id="wait", targets={"c": "9"}, offset_format="integer", snowflake_conn_id=conn_id, table="T"
    )
    require(
        walked(lambda: sensor.poke({"ti": TaskInstance()})),
        "sensor poke",
        through="streaming/commits.py",
        functions=50,
        files=9,
        depth=9,
    )


def test_copy_of_one_file(monkeypatch):
    account = FakeAccount()
    install(account, monkeypatch)
    runs, began = iter(("r1", "r2")), dt.datetime.now(dt.UTC)

    def way():
        run = next(runs)
        account.put(run, "1", "2")
        operator = SnowpipeCopyOperator(
            task_id="copy", snowflake_conn_id="account", table="T", stage="@S", options={}
        )
        operator.execute(task_context(run, 1, began))

    require(walked(way), "COPY of one file", through="bulk/copy.py", functions=105, files=16, depth=8)
