"""Counting and comparing of what foreign suites report; the suites themselves run in ``make nightly``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts import foreign_suites


def record(test: str, outcome: str) -> dict[str, Any]:
    return {"id": test, "outcome": outcome, "seconds": 0.1, "why": "because" if outcome == "failed" else ""}


LISTED = [
    foreign_suites.Listed("a.py::test_one[[]x]*", "never matches"),
    foreign_suites.Listed("a.py::test_known", "a reason"),
    foreign_suites.Listed("a.py::test_group[*]", "a reason", group="intervals"),
    foreign_suites.Listed("b.py::test_varies", "a reason", varies=True),
]


def test_failures_are_counted_by_file_and_compared_with_the_list() -> None:
    outcomes = """
a.py::test_fine passed, a.py::test_known failed, a.py::test_group[1] failed, a.py::test_group[2] passed,
b.py::test_new passed, b.py::test_new failed, b.py::test_varies passed, b.py::test_skipped skipped"""
    records = [record(*one.split()) for one in outcomes.split(",")]
    report = foreign_suites.compare(records, LISTED, everything=True)
    assert report["files"] == {
        "a.py": {"passed": 2, "failed": 2, "listed": 2},
        "b.py": {"passed": 1, "failed": 1, "skipped": 1},
    }
    assert (report["unlisted"], report["listed, passing"]) == (["b.py::test_new"], [])
    assert report["listed, not run"] == ["a.py::test_one[[]x]*"]
    assert report["not counted"] == {"intervals": 2}
    assert (report["passed"], report["failed"], report["part"]) == (2, 2, 0.5)
    report = foreign_suites.compare([record("a.py::test_known", "passed")], LISTED, everything=False)
    assert (report["listed, passing"], report["listed, not run"]) == (["a.py::test_known"], [])


@pytest.mark.parametrize("name", sorted(foreign_suites.SUITES))
def test_the_committed_lists_give_a_reason(name: str, tmp_path: Path) -> None:
    listed = foreign_suites.read_list(foreign_suites.LISTS / f"{name}.toml")
    assert listed
    assert len({one.pattern for one in listed}) == len(listed)
    (tmp_path / "x.toml").write_text('[[known]]\nids = ["a"]\n')
    with pytest.raises(ValueError, match="why"):
        foreign_suites.read_list(tmp_path / "x.toml")


def test_a_suite_that_ends_before_its_last_test_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = tmp_path / "test" / "integ"
    tests.mkdir(parents=True)
    (tests / "test_cursor.py").write_text("""
import os

def test_passes(): pass

def test_ends_the_process(): os._exit(3)
""")
    service = SimpleNamespace(
        account="a", user="u", password="p", port=1, ca_file="c", env={}, sql=list, start=lambda: None,
        stop=lambda: None,
    )  # fmt: skip
    monkeypatch.setattr(foreign_suites, "LocalService", lambda _folder: service)
    monkeypatch.setattr(foreign_suites, "python_of", lambda _: Path(sys.executable))

    with pytest.raises(SystemExit, match="connector: pytest ended with 3"):
        foreign_suites.run_suite("connector", tmp_path, [], tmp_path)


def test_a_termination_stops_the_service_of_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    ended: list[str] = []

    class Service:
        def __init__(self, _folder: Path) -> None:
            pass

        def start(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

        def stop(self) -> None:
            ended.append("service")

    (tmp_path / "fakesnow" / "transforms").mkdir(parents=True)
    monkeypatch.setattr(foreign_suites, "LocalService", Service)
    monkeypatch.setattr(foreign_suites, "python_of", lambda _name: Path(sys.executable))
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    request.addfinalizer(lambda: signal.signal(signal.SIGTERM, before))
    with pytest.raises(KeyboardInterrupt):
        foreign_suites.main(["--checkout", str(tmp_path)])
    assert ended == ["service"]
