"""The example program of the data source, submitted and killed with all its processes, at night.

Daily, ``integration/test_data_source_stream`` repeats a batch that is not noted as done.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

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
_numbers = itertools.count(1)


class Program:
    """Runs of the program on one table, one folder of files and one checkpoint."""

    def __init__(self, service: LocalService, folder: Path) -> None:
        name = f"ORDERS{next(_numbers)}X"
        columns = "REGION VARCHAR, ID NUMBER, AMOUNT NUMBER(12,2)"
        self.door = Door(service, name, folder / "credentials.json", columns=columns, prefix=name.lower())
        self.door.create()
        self.folder, self.checkpoint = folder, folder / "checkpoint"
        (folder / "source").mkdir()
        for file in range(FILES):
            numbers = range(file * ROWS, (file + 1) * ROWS)
            rows = [{"REGION": REGIONS[n % 2], "ID": n, "AMOUNT": f"{n}.25"} for n in numbers]
            path = folder / "source" / f"{file}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(path, (file + 1, file + 1))  # Spark takes files in the order of their times

    @contextmanager
    def started(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """A run in a process group of its own, which is killed when the block ends."""
        options = [f"{key}={value}" for key, value in self.door.options(batchBytes=400).items()]
        command = [SPARK_SUBMIT, "--master", "local[2,4]", "--conf", "spark.ui.enabled=false", PROGRAM]
        environment = {**os.environ, **spark_environment(self.folder)}
        with (self.folder / name).open("w") as log:
            process = subprocess.Popen(
                [*command, self.folder / "source", self.checkpoint, *options],
                env=environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(120)

    def tokens(self) -> list[str]:
        """The committed tokens that there are, read in a way that no fault of the streaming API delays."""
        shown = self.door.service.sql(f"SHOW CHANNELS LIKE '{self.door.prefix}_%'")
        return [row["offset_token"] for row in shown if row["offset_token"]]


@pytest.mark.parametrize("is_in_the_middle", [True, False], ids=["middle", "written"])
def test_killed_stream_goes_on_from_its_checkpoint_and_every_row_is_there_once(
    admin_service: LocalService, tmp_path: Path, is_in_the_middle: bool
) -> None:
    program = Program(admin_service, tmp_path)
    if is_in_the_middle:
        admin_service.admin("faults", set=_HELD)
    with program.started("first"):
        wait_until(program.tokens, seconds=_SECONDS, what="a commit")
        if is_in_the_middle:
            held = lambda: len(admin_service.admin("faults")["faults"]) < 4  # noqa: E731
            wait_until(held, seconds=_SECONDS, what="appends that are held up")
        else:
            admin_service.admin("faults", set="slow-status=60x500")
            wait_until(
                lambda: any("-end~" in token for token in program.tokens()),
                seconds=_SECONDS,
                what="the commit of all rows of a channel, which no task can observe",
            )
    admin_service.admin("faults", clear=True)
    found = program.tokens()
    assert all(token.startswith("0:") for token in found)
    assert not (program.checkpoint / "commits" / "0").exists()
    if is_in_the_middle:
        assert not all("-end~" in token for token in found)

    with program.started("second") as second:
        code = second.wait(_SECONDS)
    first, printed = ((tmp_path / name).read_text() for name in ("first", "second"))
    assert code == 0, printed[-4000:]
    for index, region in enumerate(REGIONS):
        assert program.door.ids(f"REGION = '{region}'") == list(range(index, FILES * ROWS, 2))
    assert "snowpipe committed batch=0 channels=2 " in printed
    assert f"snowpipe committed batch=1 channels=2 rows={ROWS} " in printed
    assert sorted(token.partition("/")[0] for token in program.tokens()) == [f"1:{ROWS // 2}"] * 2
    assert "PRIVATE KEY" not in first + printed
