"""The example program of the data source, killed with all its processes at several timestamps."""

from __future__ import annotations

import itertools
import json

import pytest

from tests.spark_session import ROOT, Door
from tests.spark_stream_program import KILL_POINTS, StreamProgram

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

PROGRAM = ROOT / "docs" / "examples" / "stream_orders.py"
REGIONS = ("EU", "US")
FILES, ROWS = 2, 300
_numbers = itertools.count(1)


def _program(service, folder):
    columns = "REGION VARCHAR, ID NUMBER, AMOUNT NUMBER(12,2)"
    name = f"ORDERS{next(_numbers)}X"
    door = Door(service, name, folder / "credentials.json", columns=columns, prefix=name.lower()).create()
    program = StreamProgram(PROGRAM, door, folder, {"batchBytes": 400})
    for file in range(FILES):
        numbers = range(file * ROWS, (file + 1) * ROWS)
        rows = [{"REGION": REGIONS[n % 2], "ID": n, "AMOUNT": f"{n}.25"} for n in numbers]
        program.put(f"{file}.json", "".join(json.dumps(row) + "\n" for row in rows))
    return program


@pytest.mark.parametrize("kill_point", KILL_POINTS, ids=["middle", "written"])
def test_killed_stream_goes_on_from_its_checkpoint_and_every_row_is_there_once(
    admin_service, tmp_path, kill_point
):
    program = _program(admin_service, tmp_path)
    program.run_until_killed("first", kill_point)
    found = program.tokens()
    assert all(token.startswith("0:") for token in found)
    assert not (program.checkpoint / "commits" / "0").exists()
    if kill_point == "in the middle of a batch":
        assert not all("-end~" in token for token in found)

    printed = program.run("second")

    for index, region in enumerate(REGIONS):
        assert program.door.ids(f"REGION = '{region}'") == list(range(index, FILES * ROWS, 2))
    assert "snowpipe committed batch=0 channels=2 " in printed
    assert f"snowpipe committed batch=1 channels=2 rows={ROWS} " in printed
    assert sorted(token.partition("/")[0] for token in program.tokens()) == [f"1:{ROWS // 2}"] * 2
    assert "PRIVATE KEY" not in printed + (tmp_path / "first").read_text()
