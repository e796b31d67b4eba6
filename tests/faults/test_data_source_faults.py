"""The example program of the data source, submitted and killed with all its processes, at night.

Daily, ``integration/test_data_source_stream`` repeats a batch that is not noted as done.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.processes import ProcessGroup
from tests.local_service import LocalService
from tests.spark_job import SPARK_SUBMIT
from tests.spark_session import ROOT, Door, spark_environment
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

PROGRAM = ROOT / "docs" / "examples" / "stream_orders.py"
REGIONS = ("EU", "US")
FILES, ROWS = 2, 300
_HELD = "slow-append=0x4,slow-append=600x4"
"""Four appends are answered, the next ones are held up until the faults are cleared."""
_SECONDS = 900


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[ProcessGroup]:
    group = ProcessGroup(tmp_path / "processes.json")
    yield group
    group.stop()


def _write(folder: Path) -> None:
    folder.mkdir()
    for file in range(FILES):
        numbers = range(file * ROWS, (file + 1) * ROWS)
        rows = [{"REGION": REGIONS[n % 2], "ID": n, "AMOUNT": f"{n}.25"} for n in numbers]
        path = folder / f"{file}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (file + 1, file + 1))  # Spark takes files in the order of their times


def test_killed_stream_goes_on_from_its_checkpoint_and_every_row_is_there_once(
    admin_service: LocalService, tmp_path: Path, processes: ProcessGroup
) -> None:
    columns = "REGION VARCHAR, ID NUMBER, AMOUNT NUMBER(12,2)"
    door = Door(admin_service, "ORDERS", tmp_path / "credentials.json", columns=columns).create()
    _write(tmp_path / "source")
    options = [f"{key}={value}" for key, value in door.options(batchBytes=400).items()]
    # It writes into the folder in which it starts.
    submit = [SPARK_SUBMIT, "--master", "local[2,4]", "--conf", "spark.ui.enabled=false"]
    command = [*map(str, ["env", "-C", tmp_path, *submit, PROGRAM, "source", "checkpoint"]), *options]
    environment = {**os.environ, **spark_environment(tmp_path)}

    def tokens() -> list[str]:
        """The committed tokens that there are, read in a way that no fault of the streaming API delays."""
        shown = admin_service.sql(f"SHOW CHANNELS LIKE '{door.prefix}_%'")
        return [row["offset_token"] for row in shown if row["offset_token"]]

    admin_service.admin("faults", set=_HELD)
    processes.start("first", command, environment, tmp_path / "first")
    wait_until(tokens, seconds=_SECONDS, what="a commit")
    held = lambda: len(admin_service.admin("faults")["faults"]) < 4  # noqa: E731
    wait_until(held, seconds=_SECONDS, what="appends that are held up")
    processes.kill("first")
    processes.stop()
    admin_service.admin("faults", clear=True)
    found = tokens()
    assert all(token.startswith("0:") for token in found)
    assert not all("-end~" in token for token in found)
    assert not (tmp_path / "checkpoint" / "commits" / "0").exists()

    processes.start("second", command, environment, tmp_path / "second")
    ended = wait_until(processes.ended, seconds=_SECONDS, what="the end of the stream")
    first, printed = ((tmp_path / name).read_text() for name in ("first", "second"))
    assert ended == {"second": 0}, printed[-4000:]
    for index, region in enumerate(REGIONS):
        assert door.ids(f"REGION = '{region}'") == list(range(index, FILES * ROWS, 2))
    assert "snowpipe committed batch=0 channels=2 " in printed
    assert f"snowpipe committed batch=1 channels=2 rows={ROWS} " in printed
    assert sorted(token.partition("/")[0] for token in tokens()) == [f"1:{ROWS // 2}"] * 2
    assert "PRIVATE KEY" not in first + printed
