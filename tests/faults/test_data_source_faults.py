"""The example program of the data source, killed with all its processes at several moments."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from tests.spark_job import SPARK_SUBMIT, wait_until
from tests.spark_session import ROOT, Door, spark_environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PROGRAM = ROOT / "docs" / "examples" / "stream_orders.py"
REGIONS = ("EU", "US")
FILES, ROWS = 2, 1500


class Program:
    """Runs of the example on one table, one source and one checkpoint."""

    def __init__(self, service, folder):
        self.service = service
        self.folder = folder
        columns = "REGION VARCHAR, ID NUMBER, AMOUNT NUMBER(12,2)"
        self.door = Door(service, "ORDERS", folder / "credentials.json", columns=columns, prefix="orders")
        self.door.create()
        self.source, self.checkpoint = folder / "source", folder / "checkpoint"
        self.source.mkdir()
        for file in range(FILES):
            numbers = range(file * ROWS, (file + 1) * ROWS)
            rows = [{"REGION": REGIONS[n % 2], "ID": n, "AMOUNT": f"{n}.25"} for n in numbers]
            path = self.source / f"{file}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(path, (file + 1, file + 1))

    def start(self, name):
        """Start a run in a process group of its own, its output beside the source."""
        options = [f"{key}={value}" for key, value in self.door.options(batchBytes=1000).items()]
        environment = {**os.environ, **spark_environment(self.folder)}
        with (self.folder / name).open("w") as log:
            return subprocess.Popen(
                [
                    str(SPARK_SUBMIT),
                    *("--master", "local[2,4]", "--conf", "spark.ui.enabled=false"),
                    *(str(PROGRAM), str(self.source), str(self.checkpoint), *options),
                ],
                env=environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, name):
        """Run to the end; returns what it printed."""
        process = self.start(name)
        try:
            code = process.wait(240)
        finally:
            kill_all(process)
        printed = (self.folder / name).read_text()
        assert code == 0, printed[-4000:]
        return printed

    def tokens(self):
        """The committed tokens that there are, read in a way that no fault of the streaming API delays."""
        shown = self.service.sql("SHOW CHANNELS LIKE 'orders_%'")
        return [row["offset_token"] for row in shown if row["offset_token"]]

    def ids(self, region):
        return self.door.ids(f"REGION = '{region}'")


def kill_all(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(30)


@pytest.mark.parametrize("moment", ["in the middle of a batch", "between write and commit"])
def test_killed_stream_goes_on_from_its_checkpoint_and_every_row_is_there_once(
    service_factory, tmp_path, moment
):
    service = service_factory(admin=True)
    program = Program(service, tmp_path)
    process = program.start("first")
    try:
        wait_until(lambda: bool(program.tokens()), seconds=240, what="the first commit")
        if moment == "between write and commit":
            service.admin("faults", set="slow-status=60x500")
            wait_until(
                lambda: any(token.endswith("-end") for token in program.tokens()),
                seconds=90,
                what="the commit of all rows of a channel, of which no task can hear",
            )
    finally:
        kill_all(process)
        service.admin("faults", clear=True)
    found = program.tokens()
    assert all(token.startswith("0:") for token in found)
    assert not (program.checkpoint / "commits" / "0").exists()
    if moment == "in the middle of a batch":
        assert not all(token.endswith("-end") for token in found)

    printed = program.run("second")

    for index, region in enumerate(REGIONS):
        assert program.ids(region) == list(range(index, FILES * ROWS, 2))
    assert "snowpipe committed batch=0 channels=2 " in printed
    assert f"snowpipe committed batch=1 channels=2 rows={ROWS} " in printed
    assert sorted(token.partition("/")[0] for token in program.tokens()) == ["1:750", "1:750"]
    assert "PRIVATE KEY" not in printed + (tmp_path / "first").read_text()
