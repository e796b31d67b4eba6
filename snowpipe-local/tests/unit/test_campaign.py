"""The verdict of a campaign's round, what its seed draws, and what reaches the environment of a try."""

import itertools
import json
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest
from snowpipe_local import campaign
from snowpipe_local.campaign import Round, Rows, Work, drawn_faults, drawn_hit, until_green
from snowpipe_local.cli import main
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.faults import parse_faults

EXPECTED = Rows({"a": 1, "b": 2})


def test_the_tables_are_the_judge():
    for found, wrong in [
        ({"a": 1, "b": 2}, {}), ({"a": 1, "b": 1}, {"lost": 1}), ({"a": 3, "b": 2}, {"doubled": 2}),
        ({"a": 1, "b": 2, "c": 2}, {"unexpected": 2}),
        ({"b": 3, "c": 1}, {"lost": 1, "doubled": 1, "unexpected": 1}),
    ]:  # fmt: skip
        one = Round(7)
        one.judge(EXPECTED, Rows(found))
        assert {name: getattr(one, name) for name in wrong} == wrong
        assert one.is_right == (not wrong)
        assert ("right" in one.words()) == (not wrong)
        assert all(f"{count} {name}" in one.words() for name, count in wrong.items())
    for one, found, judged in (
        (Round(7, early=2), Rows({"a": 1, "b": 1}), (1, 1, False)),
        (Round(7, unfinished=1), Rows(), (0, 0, False)),
    ):  # fmt: skip
        one.judge(EXPECTED, found)
        assert (one.early, one.lost, one.is_right) == judged


def test_a_seed_draws_the_same_again_and_the_service_takes_it():
    drawn = [(drawn_faults(random.Random(seed)), drawn_hit(random.Random(seed), 9)) for seed in range(200)]
    assert drawn == [
        (drawn_faults(random.Random(seed)), drawn_hit(random.Random(seed), 9)) for seed in range(200)
    ]
    assert all(parse_faults(",".join(faults)) for faults, _ in drawn)
    hits = Counter(str(hit) for _, hit in drawn)
    assert len(hits) == 5  # kill and stop, before and after, and none
    assert {hit.nth for _, hit in drawn if hit} == set(range(1, 10))


class Scripted:
    """A try that ends, or stops, as a test prescribes."""

    def __init__(self, *codes: int | None) -> None:
        self.codes = list(codes)

    def wait(self) -> int | None:
        return self.codes.pop(0)

    go_on = wait

    def send(self, _signal: int) -> None:
        """It goes on when it is waited for."""


def test_tries_go_on_until_one_succeeds():
    for codes, ended, greens in [
        ([[0]], True, 1), ([[-9], [1], [0]], True, 1), ([[None, 0], [0]], True, 2),
        ([[None, 1], [0]], True, 1), ([[1]] * 8, False, 0), ([[None, -9], *[[1]] * 7], False, 0),
    ]:  # fmt: skip
        tries, green = iter([Scripted(*each) for each in codes]), itertools.count()
        done = until_green(lambda *_, left=tries: next(left), random.Random(1), [], green.__next__)
        assert (done, next(green), list(tries)) == (ended, greens, [])


def test_nothing_of_the_callers_airflow_reaches_a_try(tmp_path, monkeypatch):
    service = {"AIRFLOW_CONN_SNOWFLAKE_DEFAULT": "local", "REQUESTS_CA_BUNDLE": "ca"}
    monkeypatch.setattr(campaign, "variables", lambda _: dict(service))
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://production")
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", "production")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark")
    work = Work(["x"], {"SOURCE": "/data"}, conn_ids=["warehouse"])
    env = work.environment(DataDirectory(tmp_path / "service"), tmp_path, "mark")
    assert "production" not in json.dumps(env)
    assert (env["AIRFLOW_CONN_WAREHOUSE"], env["AIRFLOW_CONN_SPARK_DEFAULT"]) == ("local", "spark")
    assert (env["SOURCE"], env["PATH"]) == ("/data", os.environ["PATH"])


def test_what_cannot_be_run_is_named(tmp_path: Path, capsys):
    for words, named in [
        (["--dag", "/no/dag.py"], "/no/dag.py"), (["--plan", "{plan}"], "command"),
        (["--plan", "{plan}", "--env", "NAME"], "NAME=VALUE"),
    ]:  # fmt: skip
        plan = tmp_path / "plan.json"
        plan.write_text("{}")
        assert main(["campaign", *[word.format(plan=plan) for word in words]]) == 1
        assert named in capsys.readouterr().err


def test_sigterm_ends_it_as_ctrl_c_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"command": ["true"]}))
    monkeypatch.setattr(campaign.Campaign, "prepare", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert main(["campaign", "--plan", str(plan), "--rounds", "1"]) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
