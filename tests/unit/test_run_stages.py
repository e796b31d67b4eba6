"""The runner of stages behind ``make quick``, ``make test`` and ``make nightly``."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from scripts import run_stages
from scripts.run_stages import REPOSITORY, STAGES, WORKERS, Outcome, Run, Stage, Yardstick, read_run, summary
from tests.waiting import wait_until

OF_ITS_OWN_GROUP = """
import os, time
os.setpgid(0, 0)
os.symlink(f"/proc/{os.getpid()}", os.environ["HERE"] + "/pid")
time.sleep(600)
"""

Execute = Callable[..., list[Outcome]]

TESTS = """
import pytest

def test_passes(): pass

@pytest.mark.parametrize("n", range(2))
def test_needs_a_browser(n): pytest.skip("no chromium on this machine")

def test_adds(): assert 1 + 1 == 3, "of no use"
"""


@pytest.fixture
def execute(tmp_path: Path) -> Execute:
    def run(*stages: Stage, minutes: float = 10, **options: Any) -> list[Outcome]:
        environment = {**os.environ, "HERE": str(tmp_path), "PYTHON": sys.executable}
        return Run(stages, minutes, tmp_path / "stages", environment, **options).execute()

    return run


@pytest.fixture
def started_in_the_background() -> Iterator[None]:
    """As a shell starts ``make test &``."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def waits_for(other: str) -> str:
    return f"until [ -e $HERE/{other} ]; do sleep 0.02; done"


def test_stages_run_beside_each_other_while_there_is_room(execute: Execute) -> None:
    first, second = execute(
        Stage("first", f"touch $HERE/first; {waits_for('second')}", minutes=2),
        Stage("second", f"touch $HERE/second; {waits_for('first')}", minutes=2),
    )

    assert (first.result, second.result) == ("passed", "passed")


def test_stage_waits_until_there_is_room_and_holds_up_none_behind_it_that_has_some(execute: Execute) -> None:
    outcomes = execute(
        Stage("two", f"{waits_for('small')}; sleep 0.2; touch $HERE/ended", workers=2, minutes=2),
        Stage("wide", "[ -e $HERE/ended ]", workers=WORKERS - 1),
        Stage("small", "touch $HERE/small"),
    )

    assert [(one.stage.name, one.result) for one in outcomes] == [
        ("two", "passed"), ("wide", "passed"), ("small", "passed"),
    ]  # fmt: skip


def test_failed_stage_leaves_the_others_to_run(execute: Execute, capfd: pytest.CaptureFixture[str]) -> None:
    failed, passed = execute(Stage("bad", "echo because; exit 3"), Stage("good", "true"))

    assert (failed.failed, passed.failed) == (True, False)
    assert "3" in failed.result
    assert "because" in capfd.readouterr().out
    assert "FAILED: bad: failed: exit 3" in summary([failed, passed], 1)


@pytest.mark.usefixtures("started_in_the_background")
def test_stage_that_takes_too_long_is_stopped_with_its_processes(execute: Execute, tmp_path: Path) -> None:
    (outcome,) = execute(Stage("long", "trap 'touch $HERE/int; exit 1' INT; sleep 600 & wait", minutes=0.01))

    assert outcome.result.startswith("stopped")
    assert (tmp_path / "int").exists()


@pytest.fixture
def interrupt_when() -> Callable[[Path], None]:
    """Interrupt this process once a file is there."""

    def watch(file: Path) -> None:
        wait_until(file.exists, seconds=60, what=f"{file.name} of the stage")
        os.kill(os.getpid(), signal.SIGINT)

    return lambda file: threading.Thread(target=watch, args=(file,), daemon=True).start()


@pytest.mark.usefixtures("started_in_the_background")
def test_interrupted_run_lets_a_stage_clean_up(
    execute: Execute, tmp_path: Path, interrupt_when: Callable[[Path], None]
) -> None:
    interrupt_when(tmp_path / "began")
    with pytest.raises(KeyboardInterrupt):
        execute(
            Stage("long", "trap 'sleep 0.5; touch $HERE/cleaned' INT; touch $HERE/began; sleep 600 & wait")
        )

    assert (tmp_path / "cleaned").exists()


@pytest.mark.usefixtures("started_in_the_background")
def test_interrupted_run_kills_a_stage_that_does_not_end(
    execute: Execute,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupt_when: Callable[[Path], None],
) -> None:
    monkeypatch.setattr(run_stages, "_END_SECONDS", 0.2)
    of_its_own_group = tmp_path / "program.py"
    of_its_own_group.write_text(OF_ITS_OWN_GROUP)
    stubborn = f'trap "" INT; "$PYTHON" {of_its_own_group} & wait'

    interrupt_when(tmp_path / "pid")
    with pytest.raises(KeyboardInterrupt):
        execute(Stage("stubborn", stubborn))

    pid = int((tmp_path / "pid").readlink().name)
    wait_until(lambda: not _runs(pid), seconds=60, what="the program's end")


def test_interrupt_ends_a_stage_that_has_only_just_begun(
    execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt comes while the stage's process is being made."""
    began: list[subprocess.Popen[bytes]] = []
    interrupted, ended = threading.Event(), threading.Event()
    make = subprocess.Popen

    def interrupt(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    def begin(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        began.append(make(*words, **options))
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted.wait(60)
        ended.wait(0.5)  # a run that does not know of the process ends without it
        return began[0]

    monkeypatch.setattr(subprocess, "Popen", begin)
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            execute(Stage("long", "exec sleep 600"))
        ended.set()
        wait_until(lambda: not _runs(began[0].pid), seconds=20, what="the stage's end")
    finally:
        signal.signal(signal.SIGINT, before)
        began[0].kill()


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_stage_is_left_out_when_the_run_is_out_of_time(execute: Execute, tmp_path: Path) -> None:
    first, second = execute(
        Stage("first", "sleep 600", workers=WORKERS), Stage("second", "touch $HERE/ran"), minutes=0.005
    )

    assert first.result.startswith("stopped")
    assert second.result.startswith("not run")
    assert second.failed
    assert not (tmp_path / "ran").exists()


def test_processor_time_of_child_processes_counts(execute: Execute) -> None:
    spin = "import time\nwhile time.process_time() < 0.5: pass"

    (outcome,) = execute(Stage("busy", f'bash -c \'"$PYTHON" -c "{spin}"; true\''))

    assert outcome.cpu >= 0.5


@pytest.mark.parametrize(
    ("committed", "cpu", "slowness", "verdict"),
    [
        (100, 109, 1.0, None),
        (100, 111, 1.0, "grew"),
        (100, 150, 1.4, None),  # a machine on which everything costs 40 % more
        (100, 160, 1.4, "grew"),
        (100, 105, 0.8, None),  # nor does a quick machine lower the limit
        (100, 91, 1.0, None),
        (100, 89, 1.0, "shrank"),
        (100, 75, 0.8, None),
        (1, 3.5, 1.0, None),  # seconds that are noise
        (1, 4.5, 1.0, "grew"),
        (None, 1000, 1.0, None),
    ],
)
def test_stage_fails_that_grew_by_a_tenth_and_one_that_shrank_is_named(
    committed: float | None, cpu: float, slowness: float, verdict: str | None
) -> None:
    outcome = Outcome(Stage("s", "", cpu_seconds=committed), "passed", cpu=cpu, slowness=slowness)
    lines = list(summary([outcome], 1))

    assert outcome.failed is (verdict == "grew")
    assert [line.split(":")[0] for line in lines if line.startswith(("grew", "shrank"))] == [
        verdict for verdict in [verdict] if verdict
    ]
    assert any(line.startswith("FAILED: s") for line in lines) is (verdict == "grew")
    assert any("lower cpu_seconds" in line for line in lines) is (verdict == "shrank")


def test_no_lower_figure_is_proposed_for_a_failed_stage() -> None:
    outcome = Outcome(Stage("s", "", cpu_seconds=100.0), "failed: exit 1", cpu=5.0)

    assert not any("lower" in line for line in summary([outcome], 1))


def test_slowness_is_measured_while_a_stage_runs(
    execute: Execute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Yardstick, "EVERY_SECONDS", 0.01)
    yardstick = Yardstick(Yardstick.once() / 1000)

    def end_the_stage_after_a_measurement() -> None:
        wait_until((tmp_path / "began").exists, seconds=60, what="the stage")
        mark = yardstick.mark()
        wait_until(lambda: yardstick.mark() > mark, seconds=60, what="a measurement")
        (tmp_path / "measured").touch()

    threading.Thread(target=end_the_stage_after_a_measurement, daemon=True).start()
    (outcome,) = execute(Stage("s", f"touch $HERE/began; {waits_for('measured')}"), yardstick=yardstick)

    assert outcome.slowness > 10
    assert yardstick.slowness_since(yardstick.mark() + 10) == 1.0  # nothing was measured since


def test_tests_skips_and_failures_of_a_stage_are_summed_up(execute: Execute, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (outcome,) = execute(Stage("some", '"$PYTHON" -m pytest -q -p tests.report_plugin -c /dev/null $HERE'))

    lines = list(summary([outcome], 1))

    assert outcome.result == "failed: exit 1", (tmp_path / "stages" / "some.log").read_text()
    assert len(outcome.tests) == 4
    assert re.search(r"\nFAILED: .*test_adds\n(.*\n)*E .*of no use", "\n".join(lines))
    assert any("test_it.py::test_passes" in line for line in lines)
    assert "skipped: 2" in "\n".join(lines)
    assert any(line.endswith("test_it.py: no chromium on this machine") for line in lines)
    assert "proved less: Chromium was missing, so 2 skipped" in lines


def test_stage_that_reports_it_was_skipped_is_listed(execute: Execute) -> None:
    (outcome,) = execute(Stage("other", "echo 'test-airflow: SKIPPED: not on Python 3.13'"))

    assert outcome.result == "skipped"
    assert any(line.endswith("other: not on Python 3.13") for line in summary([outcome], 1))


def test_every_committed_stage_belongs_to_a_run_and_every_make_target_is_in_its_help() -> None:
    content = tomllib.loads(STAGES.read_text())
    used = {stage for run in content["run"].values() for stage in run["stages"]}
    makefile = REPOSITORY / "Makefile"
    targets = {
        line.removeprefix(".PHONY: ") for line in makefile.read_text().splitlines() if ".PHONY:" in line
    }

    shown = subprocess.run(
        ["make", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout

    assert used == set(content["stage"])
    assert set(re.findall(r"\[36m([a-z-]+)", shown)) == targets


@pytest.mark.parametrize("name", ["quick", "test", "nightly"])
def test_committed_stages_can_be_read(name: str) -> None:
    content = tomllib.loads(STAGES.read_text())

    stages, minutes = read_run(content, name)

    assert all(stage.command and 1 <= stage.workers <= WORKERS for stage in stages)
    assert minutes <= 90
    with pytest.raises(SystemExit, match="nonsense"):
        read_run(content, name, ["nonsense"])
