"""Files that are not committed, as the lag command, the notifier and a run's value show them."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest

from airflow_provider_snowpipe.cli.definition import parser
from airflow_provider_snowpipe.notifications.lag import REPORT_KEY, SnowpipeLagNotifier
from tests.loaded_folder import Loaded, variables
from tests.loaded_folder import new as load

__all__ = ["load", "variables"]


@pytest.fixture
def lag(load: Loaded, capsys: pytest.CaptureFixture[str]) -> Any:
    def shown() -> dict[str, tuple[int, int, int]]:
        words = ("lag", "--conn-id", load.conn_id, "--table", load.table, "--output", "json")
        given = parser().parse_args(words)
        capsys.readouterr()
        given.func(given)
        lines = json.loads(capsys.readouterr().out)
        names = ("files_behind", "bytes_behind", "oldest_file_seconds")
        return {one["channel"]: tuple(one[name] for name in names) for one in lines}

    return shown


def test_files_that_came_since_the_last_run_are_behind_by_channel(load: Loaded, lag: Any) -> None:
    load.run()
    assert lag() == {"d_src_a": (0, 0, 0), "d_src_b": (0, 0, 0)}
    for name, age in (("a/0.ndjson", 30), ("a/3.ndjson", 600), ("c/1.ndjson", 5)):
        load.write(name)
        os.utime(load.folder / name, (time.time() - age, time.time() - age))
    zero, three, new = (
        (load.folder / one).stat().st_size for one in ("a/0.ndjson", "a/3.ndjson", "c/1.ndjson")
    )
    found = lag()
    assert {name: one[:2] for name, one in found.items()} == {
        "d_src_a": (2, zero + three),
        "d_src_b": (0, 0),
        "d_src_c": (1, new),
    }
    assert [600 <= found["d_src_a"][2] < 630, 5 <= found["d_src_c"][2] < 35] == [True, True]
    load.run()
    assert set(lag().values()) == {(0, 0, 0)}


def test_notifier_reports_them_and_a_source_that_it_cannot_list(load: Loaded) -> None:
    load.run()
    load.write("a/3.ndjson")
    notifier = SnowpipeLagNotifier(table=load.table, snowflake_conn_id=load.conn_id)
    context: Any = {}
    notifier.notify(context)
    assert "files_behind<=1" in context[REPORT_KEY]
    load.folder.rename(load.folder.with_name("elsewhere"))
    notifier.notify(context)
    assert "not known" in context[REPORT_KEY]
