"""``airflow snowpipe …`` against a real local service; ``plan`` with folders and shapes."""

import io
import json
import re
import runpy
import sys

import pytest

from airflow_provider_snowpipe.cli.definition import parser
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.row_gate import DeadLetter, DeadLetterFolder
from tests.airflow_version import AIRFLOW
from tests.loaded_folder import variables
from tests.local_connection import commit, committed, connect, make_table

__all__ = ["variables"]


@pytest.fixture(scope="module")
def table(local_service):
    made = make_table(local_service, "T")
    commit(local_service, made, "a", ["f:1", "f:2"])
    commit(local_service, made, "b", ["f:1"])
    return made


@pytest.fixture
def shown(capsys):
    """Run a command with the arguments as a terminal gives them; what it printed."""

    def command(*words):
        arguments = parser().parse_args(words)
        capsys.readouterr()
        arguments.func(arguments)
        return capsys.readouterr().out

    return command


@pytest.fixture
def bare(local_service, set_connection, variables, monkeypatch, shown):
    """Run a command with a connection."""
    conn_id = connect(local_service, set_connection)
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")
    return lambda command, *words: shown(command, "--conn-id", conn_id, *words)


@pytest.fixture
def run(bare):
    """Run a command for the table T."""
    return lambda command, *words: bare(command, "--table", "T", *words)


def test_letters_of_a_run_are_printed_once_each_in_their_order(shown, tmp_path):
    for run, start in (("other", 1), ("again", 2), ("again", 3)):
        folder = DeadLetterFolder(str(tmp_path), "a/b", IntegerOffset, None)
        rows = [
            DeadLetter(IntegerOffset(at), at, "ID", "no", b'{"ID":"%d"}' % at) for at in (start, start + 1)
        ]
        folder.write(rows[0].position, rows[1].position, rows, run)
    lines = [f'{{"ID":"{at}"}}\n' for at in (1, 2, 3, 4)]
    assert shown("letters", str(tmp_path)) == "".join(lines)
    assert shown("letters", str(tmp_path), "--run", "again") == "".join(lines[1:])


def test_letters_of_two_pipes_whose_channels_have_one_name_are_all_printed(shown, tmp_path):
    at = IntegerOffset(1)
    for pipe in ("D.S.ONE", "D.S.TWO"):
        folder = DeadLetterFolder(str(tmp_path), "a/b", IntegerOffset, None)
        folder.claim(pipe)
        folder.write(at, at, [DeadLetter(at, 0, "ID", "no", pipe.encode())], "run")
    assert shown("letters", str(tmp_path)).split() == ["D.S.ONE", "D.S.TWO"]
    (tmp_path / "other.parquet").write_bytes(b"no Parquet")
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(SystemExit, match="dead_letter_path"):
            shown("letters", str(folder))


@pytest.mark.usefixtures("table")
class TestReading:
    def test_channels_and_lag_show_all_channels(self, local_service, run):
        lines = json.loads(run("channels", "--output", "json"))
        assert [(one["channel"], one["committed"]) for one in lines] == [("a", "f:2"), ("b", "f:1")]
        assert "committed" in run("channels")
        lines = json.loads(run("lag", "--output", "json"))
        assert {one["channel"]: one["rows"] for one in lines} == {"a": 2, "b": 1}
        make_table(local_service, "IDLE")
        assert json.loads(run("channels", "--table", "IDLE", "--output", "json")) == []

    def test_lag_ends_badly_when_a_target_is_not_committed(self, run, capsys):
        options = ("--offset-format", "file:line", "--output", "json")
        done = json.loads(run("lag", "--targets", '{"a": "f:2"}', *options))
        assert done[0]["done"] is True
        with pytest.raises(SystemExit) as ended:
            run("lag", "--targets", '{"a": "f:2", "b": "f:2"}', *options)
        assert ended.value.code == 1
        assert [one["done"] for one in json.loads(capsys.readouterr().out)] == [True, False]

    def test_errors_are_one_line(self, run, bare, tmp_path):
        (tmp_path / "offsets.json").write_bytes(b"\xd0\x00")
        for words, text in [
            (("lag", "--targets", "x"), "--targets"),
            (("lag", "--targets", '{"a": "5"}', "--offset-format", "integer"), "'integer'"),
            (("channels", "--conn-id", "nope"), "snowpipe: .*nope"),
            (("restore", "/dev"), "is a directory: name a file"),
            (("backup", "/dev/null/offsets.json"), "snowpipe: .*Not a directory"),
            (("restore", str(tmp_path / "offsets.json")), r"offsets\.json.*UTF-8"),
        ]:
            with pytest.raises(SystemExit, match=text):
                run(*words)
        with pytest.raises(SystemExit, match=r"give table=… or pipe=…"):
            bare("channels")

    def test_what_does_not_exist_is_no_empty_list(self, tmp_path, bare):
        file = tmp_path / "offsets.json"
        for words in [
            ("channels", "--table"), ("lag", "--pipe"), ("backup", str(file), "--table"),
            ("channels", "--pipe"),
        ]:  # fmt: skip
            with pytest.raises(SystemExit, match=r"snowpipe: .*NOWHERE"):
                bare(*words, "NOWHERE")
        assert not file.exists()


class TestBackupAndRestore:
    def test_a_backup_brings_a_dropped_channel_back(self, local_service, run, tmp_path, table):
        path = str(tmp_path / "offsets.json")
        assert "2 tokens" in run("backup", path, "--dry-run")
        assert "wrote the tokens of 2 channels" in run("backup", path, "--offset-format", "file:line")
        with local_service.client(table) as client:
            client.drop_channel("b")
        assert "would create channel 'b': NULL -> f:1" in run("restore", path, "--dry-run")
        assert committed(local_service, table, "b") is None
        assert "restored 1 channels" in run("restore", path, "--channel", "b", "--yes")
        assert committed(local_service, table, "b") == "f:1"

    def test_restore_asks_first_and_needs_a_terminal(self, run, tmp_path, table, monkeypatch):
        path = str(tmp_path / "offsets.json")
        written = f"wrote the tokens of 2 channels of pipe LOCAL.PUBLIC.T-STREAMING to {path}\n"
        assert run("backup", path) == written, "and no log"
        with monkeypatch.context() as patch:
            patch.setattr("builtins.input", lambda _prompt: "n")
            with pytest.raises(SystemExit, match="changed"):
                run("restore", path)
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        with pytest.raises(SystemExit, match="-y"):
            run("restore", path)


def test_local_hands_over_to_the_services_own_command_line_and_its_help_names_every_command(capfd):
    arguments = parser().parse_args(["local", "--", "--help"])
    with pytest.raises(SystemExit) as ended:
        arguments.func(arguments)
    assert ended.value.code == 0
    of_service = capfd.readouterr().out
    assert "snowpipe-local" in of_service
    with pytest.raises(SystemExit):
        parser().parse_args(["--help"])
    commands = re.findall(r"^    (\S+)", of_service, re.MULTILINE)
    assert f"({', '.join(commands)})" in " ".join(capfd.readouterr().out.split())
    assert len(commands) > 5


def test_local_without_the_service_names_what_to_install(tmp_path, monkeypatch, shown):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r'pip install "airflow-provider-snowpipe\[local\]"'):
        shown("local", "--", "--help")


def test_commands_run_without_airflows_command_line(local_service, table, monkeypatch, capsys):
    stored = json.loads(local_service.env["AIRFLOW_CONN_SNOWFLAKE_DEFAULT"])
    stored["extra"]["ca_bundle"] = str(local_service.ca_file)
    monkeypatch.setenv("AIRFLOW_CONN_STORED", json.dumps(stored))
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")  # it is put back after the test
    words = ["channels", "--conn-id", "stored", "--table", table, "--output", "json"]
    monkeypatch.setattr(sys, "argv", ["cli", *words])
    runpy.run_module("airflow_provider_snowpipe.cli", run_name="__main__")
    printed = capsys.readouterr().out
    assert [one["channel"] for one in json.loads(printed)] == ["a", "b"]


@pytest.mark.skipif(AIRFLOW < (3, 2), reason="Airflow asks providers for commands since 3.2")
def test_airflow_offers_the_commands():
    from airflow.cli.cli_parser import get_parser

    parsed = get_parser().parse_args(["snowpipe", "backup", "/tmp/x", "--table", "T", "--dry-run"])  # noqa: S108
    assert (parsed.path, parsed.table, parsed.dry_run) == ("/tmp/x", "T", True)  # noqa: S108


@pytest.fixture
def plan(shown):
    return lambda *words: shown("plan", *words)


def test_a_folder_is_planned_as_a_table_with_reasons(plan, tmp_path):
    (tmp_path / "a.csv").write_bytes(b"1,x\n" * 1000)
    printed = plan("--from", str(tmp_path))
    assert not [word for word in ("stream", "copy", "pipe", "X-SMALL", "yes") if word not in printed]
    assert "path stream: cheapest of those that suit: stream" in printed


def test_a_shape_is_planned_as_json_and_arguments_reach_shape_policy_and_figures(plan):
    printed = json.loads(plan("--from", '{"bytes": 50e12}', "--backfill", "--output", "json"))
    shape = {"bounded": True, "bytes": 50e12, "backfill": True, "live_into_files": False, "partitions": 1}
    assert printed["shape"] == shape
    assert printed["plan"]["path"] == "copy"
    assert printed["plan"]["reasons"][0].startswith("a backfill")
    endless = ("--from", "{}", "--endless", "--arrival-rate", "1e6", "--freshness", "10", "--partitions", "2")
    printed = plan(*endless, "--path", "pipe", "--cost", "pipe_credits_per_gb=1", "-o", "json")
    found = json.loads(printed)["plan"]
    assert (found["path"], found["is_forced"], found["per_day"]) == ("pipe", True, True)
    assert found["estimates"][2]["credits"] == pytest.approx(86.4)
    assert [one["concern"] for one in found["warnings"]] == ["unfit", "micro_batches", "not_fresh"]


def test_errors_of_a_plan_are_one_line(plan):
    for words, message in [
        (("/no/such/folder",), "the files of '/no/such/folder' cannot be listed"),
        (("{}",), "the shape has no size"),
        (('{"rows": 1}', "--cost", "text_ratio"), "--cost is 'text_ratio': give name=number"),
    ]:
        with pytest.raises(SystemExit, match=f"snowpipe: .*{message}"):
            plan("--from", *words)
