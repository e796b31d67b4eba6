"""Series of loads by channels, COPY and a file pipe, with deaths anywhere: every row is in the table once."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.operators.file_boundary import FileBoundary
from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
from tests.airflow_connections import set_connection
from tests.file_loads import CrashError, Load, load

__all__ = ["load", "set_connection"]

DEATHS = {
    "copy": [(FileBoundary, "promise"), (SnowpipeCopyOperator, "perform"), (FileBoundary, "settle")],
    "pipe": [
        (FileBoundary, "promise"),
        (SnowpipeIngestFilesOperator, "perform"),
        (SnowpipeIngestFilesOperator, "_waited_here"),
        (FileBoundary, "settle"),
    ],
}


@pytest.mark.parametrize(
    ("seed", "runs"), [(1, 4), *(pytest.param(seed, 10, marks=pytest.mark.nightly) for seed in range(2, 12))]
)
def test_any_series_of_paths_and_deaths_ends_with_every_row_once(
    load: Load, monkeypatch: pytest.MonkeyPatch, seed: int, runs: int
) -> None:
    chance = random.Random(seed)
    load.make_pipe("/in")
    for number in range(runs):
        load.write(f"{number}.ndjson", chance.randint(1, 4))
        way = chance.choice(["stream", "copy", "pipe"])
        death = chance.choice([None, *DEATHS.get(way, [])])
        if way == "stream":
            _stream_all(load)
        elif death is None:
            load.run(path=way, file_pipe=load.pipe)
        else:
            _die_or_finish(monkeypatch, death, lambda way=way: load.run(path=way, file_pipe=load.pipe))
    last = load.run(path=chance.choice(["copy", "pipe"]), file_pipe=load.pipe)

    load.assert_every_row_is_there_once()
    assert str(load.token).startswith(f"{runs - 1}.ndjson:")
    assert last["path"] in DEATHS


def _stream_all(load: Load) -> None:
    """Do what a task does that streams: finish what was begun, then send the rest."""
    operator = load.operator(path="stream", file_pipe=load.pipe)
    operator._file_loading(load.context()).finish(operator._boundary())
    (position,) = load.operator()._boundary().positions()
    load.stream(*position.untouched)


def _die_or_finish(monkeypatch: pytest.MonkeyPatch, place: tuple[type, str], run: Any) -> None:
    """Die at a place, unless the run does not come by there."""

    def die(*_: Any, **__: Any) -> None:
        raise CrashError

    with monkeypatch.context() as patch, suppress(CrashError):
        patch.setattr(*place, die)
        run()
