"""How many of our functions, files and calls within each other lie on three ways through the package.

``pytest tests/unit/test_walks.py -s`` prints them. Nothing is asked of Snowflake: the ways end in scripted
services of ``tests/fake_snowpipe.py`` and ``tests/fake_account.py``.
"""

import datetime as dt
import sys
import threading
from pathlib import Path

import airflow_provider_snowpipe
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.spark.task.sink import PartitionWork, SinkSettings, load_partition
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.airflow_connections import PAT
from tests.fake_account import FakeAccount
from tests.fake_snowpipe import PIPE, URL, snowpipe
from tests.local_connection import TaskInstance
from tests.memory_source import MemoryPartition, rows
from tests.unit.operators.account_in_task import install, task_context

__all__ = ["snowpipe"]

_PACKAGE = str(Path(airflow_provider_snowpipe.__file__).parent)


class Walk:
    """The functions of ours that were called, by file and name, and how deep they were in each other."""

    def __init__(self):
        self.functions = set()
        self.depth = 0

    @property
    def files(self):
        return {file for file, _, _ in self.functions}

    def see(self, frame, event, _):
        """A profile function: see ``sys.setprofile``."""
        if event != "call" or not _is_function_of_ours(frame):
            return
        code = frame.f_code
        self.functions.add((code.co_filename, code.co_qualname, code.co_firstlineno))
        depth = 0
        caller = frame
        while caller is not None:
            depth += _is_function_of_ours(caller)
            caller = caller.f_back
        self.depth = max(self.depth, depth)


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


def require(walk, name, *, functions, files, depth):
    """Print the numbers of a way and its functions, and hold the numbers against what they may be at most."""
    found = (len(walk.functions), len(walk.files), walk.depth)
    most = (functions, files, depth)
    print(f"\n{name}: {found[0]} functions, {found[1]} files, {found[2]} deep (at most {most})")
    for file in sorted(walk.files):
        names = sorted({name for one, name, _ in walk.functions if one == file})
        print(f"  {Path(file).relative_to(_PACKAGE)}: {', '.join(names)}")
    assert all(one <= limit for one, limit in zip(found, most, strict=True)), (name, found, most)


def test_row_to_commit(snowpipe):
    limits = BatchLimits(rows=2, age_seconds=30, requests_per_second=10_000)
    settings = SinkSettings(URL, None, PIPE, wait_for_commit=True, commit_timeout=60.0, limits=limits)
    partition = MemoryPartition("p", rows(1))
    channels = iter(("c1", "c2"))

    def way():
        work = PartitionWork(next(channels), partition, None, partition.resume(None))
        load_partition(settings, snowpipe.scoped_token(None), work)

    walk = walked(way)
    require(walk, "row to commit", functions=79, files=13, depth=9)
    assert any(file.endswith("streaming/channel.py") for file in walk.files)


def test_sensor_poke(snowpipe, set_connection):
    snowpipe.channel("c", committed="9")
    extra = {"auth": "programmatic_access_token", "database": "DB"}
    conn_id = set_connection("fake", conn_type="snowpipe", host=URL, password=PAT, schema="S", extra=extra)
    sensor = SnowpipeCommitSensor(
        task_id="wait", targets={"c": "9"}, offset_format="integer", snowflake_conn_id=conn_id, table="T"
    )
    walk = walked(lambda: sensor.poke({"ti": TaskInstance()}))
    require(walk, "sensor poke", functions=50, files=9, depth=9)
    assert any(file.endswith("streaming/commits.py") for file in walk.files)


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

    walk = walked(way)
    require(walk, "COPY of one file", functions=132, files=16, depth=10)
    assert any(file.endswith("bulk/copy.py") for file in walk.files)
