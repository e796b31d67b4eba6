"""``writeStream.format("snowpipe")`` alone, its driver killed, with rows that do not fit, at night.

Daily, ``integration/test_data_source_stream`` repeats a batch that is not noted as done.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pyarrow.parquet as pq
import pytest

from tests.spark_session import ROOT, Door
from tests.spark_stream_program import KILL_POINTS, StreamProgram

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

ROWS = 200
BAD = {3, 150, 151, 198, 199, 203, 399}
_numbers = itertools.count(1)


def _program(service, folder):
    number = next(_numbers)
    door = Door(service, f"PLAIN{number}", folder / "credentials.json", columns="ID NUMBER, N NUMBER")
    door.prefix = f"plain{number}x"
    door.create()
    options = {
        "partitions": 1,
        "batchBytes": 200,
        "onError": "dead_letter",
        "deadLetterPath": folder / "dead letters",
    }
    program = StreamProgram(ROOT / "tests" / "plain_stream.py", door, folder, options)
    for file in range(2):
        rows = [{"ID": n, "N": "x" if n in BAD else "1"} for n in range(file * ROWS, (file + 1) * ROWS)]
        program.put(f"{file}.json", "".join(json.dumps(row) + "\n" for row in rows))
    return program


def _put_aside(folder):
    files = sorted((folder / "dead letters").rglob("*.parquet"))
    dead_letters = [row for file in files for row in pq.read_table(file).to_pylist()]
    return Counter(json.loads(dead_letter["payload"])["ID"] for dead_letter in dead_letters)


@pytest.mark.parametrize("kill_point", KILL_POINTS, ids=["middle", "written"])
def test_killed_driver_goes_on_from_its_checkpoint(admin_service, tmp_path, kill_point):
    program = _program(admin_service, tmp_path)
    program.run_until_killed("first", kill_point)
    assert not (program.checkpoint / "commits" / "0").exists()

    printed = program.run("second")

    assert program.door.ids() == [n for n in range(2 * ROWS) if n not in BAD]
    assert _put_aside(tmp_path) == dict.fromkeys(BAD, 1)
    assert "snowpipe committed batch=1 channels=1 " in printed
    assert "PRIVATE KEY" not in printed
