"""``airflow snowpipe plan …`` with folders, shapes, and a stage of a real local service."""

import json

import pytest

from airflow_provider_snowpipe.cli.definition import parser


@pytest.fixture
def run(capsys):
    """Run the command with the arguments as a terminal gives them; what it printed."""

    def command(*words):
        arguments = parser().parse_args(["plan", *words])
        capsys.readouterr()
        arguments.func(arguments)
        return capsys.readouterr().out

    return command


def test_a_folder_is_planned_as_a_table_with_reasons(run, tmp_path):
    (tmp_path / "a.csv").write_bytes(b"1,x\n" * 1000)
    printed = run("--from", str(tmp_path))
    assert not [word for word in ("stream", "copy", "pipe", "X-SMALL", "yes") if word not in printed]
    assert "path stream: cheapest of those that suit: stream" in printed


def test_a_shape_is_planned_as_json_and_arguments_reach_shape_policy_and_figures(run):
    printed = json.loads(run("--from", '{"bytes": 50e12}', "--backfill", "--output", "json"))
    shape = {"bounded": True, "bytes": 50e12, "backfill": True, "live_into_files": False, "partitions": 1}
    assert printed["shape"] == shape
    assert printed["plan"]["path"] == "copy"
    assert printed["plan"]["reasons"][0].startswith("a backfill")

    endless = ("--from", "{}", "--endless", "--arrival-rate", "1e6", "--freshness", "10", "--partitions", "2")
    printed = run(*endless, "--path", "pipe", "--cost", "pipe_credits_per_gb=1", "-o", "json")
    plan = json.loads(printed)["plan"]
    assert (plan["path"], plan["is_forced"], plan["per_day"]) == ("pipe", True, True)
    assert plan["estimates"][2]["credits"] == pytest.approx(86.4)
    assert [one["concern"] for one in plan["warnings"]] == ["unfit", "micro_batches", "not_fresh"]


def test_the_path_before_stays_near_a_boundary(run):
    near = ("--from", '{"bytes": 5e9}', "-o", "json")
    assert json.loads(run(*near))["plan"]["path"] == "copy"
    assert json.loads(run(*near, "--previous", "stream"))["plan"]["path"] == "stream"


def test_errors_are_one_line(run):
    for words, message in [
        (("/no/such/folder",), "the files of '/no/such/folder' cannot be listed"),
        (("{",), "it begins like JSON and is none"),
        (("{}",), "the shape has no size"),
        (('{"rows": 1}', "--cost", "text_ratio"), "--cost is 'text_ratio': give name=number"),
        (('{"rows": 1}', "--warehouse", "big"), "warehouse is 'BIG'"),
    ]:
        with pytest.raises(SystemExit, match=f"snowpipe: .*{message}"):
            run("--from", *words)
