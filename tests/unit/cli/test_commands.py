"""``airflow snowpipe …`` against a real local service."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.cli.definition import parser
from tests.airflow_version import AIRFLOW
from tests.local_connection import commit, committed, connect, make_table

Run = Callable[..., str]


@pytest.fixture(scope="module")
def table(local_service):
    made = make_table(local_service, "T")
    commit(local_service, made, "a", ["f:1", "f:2"])
    commit(local_service, made, "b", ["f:1"])
    return made


@pytest.fixture
def bare(local_service, set_connection, monkeypatch, capsys):
    """Run a command with a connection and these arguments as a terminal gives them; what it printed."""
    conn_id = connect(local_service, set_connection)
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")

    def command(*words: str) -> str:
        arguments = parser().parse_args([words[0], "--conn-id", conn_id, *words[1:]])
        capsys.readouterr()
        arguments.func(arguments)
        return capsys.readouterr().out

    return command


@pytest.fixture
def run(bare):
    """Run a command for the table T."""
    return lambda command, *words: bare(command, "--table", "T", *words)


@pytest.mark.usefixtures("table")
class TestReading:
    def test_channels_lists_names_and_tokens(self, run):
        lines = json.loads(run("channels", "--output", "json"))

        assert [(one["channel"], one["committed"]) for one in lines] == [("a", "f:2"), ("b", "f:1")]

    def test_channels_is_a_table_for_people(self, run):
        assert "committed" in run("channels")

    def test_lag_shows_all_channels(self, run):
        lines = json.loads(run("lag", "--output", "json"))

        assert {one["channel"]: one["rows"] for one in lines} == {"a": 2, "b": 1}

    def test_lag_ends_badly_when_a_target_is_not_committed(self, run, capsys):
        done = json.loads(run("lag", "--targets", '{"a": "f:2"}', "--output", "json"))
        assert done[0]["done"] is True

        with pytest.raises(SystemExit) as ended:
            run("lag", "--targets", '{"a": "f:2", "b": "f:2"}', "--output", "json")
        assert ended.value.code == 1
        assert [one["done"] for one in json.loads(capsys.readouterr().out)] == [True, False]

    def test_errors_are_one_line(self, run):
        with pytest.raises(SystemExit, match="--targets"):
            run("lag", "--targets", "x")
        with pytest.raises(SystemExit, match="'integer'"):
            run("lag", "--targets", '{"a": "5"}', "--offset-format", "integer")
        with pytest.raises(SystemExit, match=r"snowpipe: .*nope"):
            run("channels", "--conn-id", "nope")
        with pytest.raises(SystemExit, match=r"is a directory: name a file"):
            run("restore", "/dev")
        with pytest.raises(SystemExit, match=r"is a directory: name a file"):
            run("backup", "/dev")
        with pytest.raises(SystemExit, match=r"snowpipe: .*Not a directory"):
            run("backup", "/dev/null/offsets.json")

    def test_a_file_of_other_bytes_is_no_backup(self, run, tmp_path):
        (tmp_path / "offsets.json").write_bytes(b"\xd0\x00")

        with pytest.raises(SystemExit, match=r"offsets\.json.*is no text in UTF-8: name another"):
            run("restore", str(tmp_path / "offsets.json"))

    @pytest.mark.parametrize("command", ["channels", "lag", "backup"])
    @pytest.mark.parametrize("target", ["--table", "--pipe"])
    def test_what_does_not_exist_is_no_empty_list(self, command, target, tmp_path, bare):
        file = tmp_path / "offsets.json"
        with pytest.raises(SystemExit, match=r"snowpipe: .*NOWHERE.*does not exist"):
            bare(command, *([str(file)] if command == "backup" else []), target, "NOWHERE")

        assert not file.exists()

    def test_a_table_without_channels_has_an_empty_list(self, local_service, run):
        make_table(local_service, "IDLE")

        assert json.loads(run("channels", "--table", "IDLE", "--output", "json")) == []

    def test_remedies_name_options_of_the_command(self, bare):
        with pytest.raises(SystemExit, match=r"give --table … or --pipe …, or fill"):
            bare("channels")


class TestBackupAndRestore:
    def test_a_backup_prints_its_lines_and_no_log(self, run, tmp_path, table):
        path = str(tmp_path / "offsets.json")

        assert (
            run("backup", path)
            == f"wrote the tokens of 2 channels of pipe LOCAL.PUBLIC.T-STREAMING to {path}\n"
        )

    def test_a_backup_brings_a_dropped_channel_back(self, local_service, run, tmp_path, table):
        path = str(tmp_path / "offsets.json")
        assert "would write 2 tokens" in run("backup", path, "--dry-run")
        assert "wrote the tokens of 2 channels" in run("backup", path, "--offset-format", "file:line")
        with local_service.client(table) as client:
            client.drop_channel("b")

        assert "would create channel 'b': NULL -> f:1" in run("restore", path, "--dry-run")
        assert committed(local_service, table, "b") is None
        assert "restored 1 channels" in run("restore", path, "--channel", "b", "--yes")
        assert committed(local_service, table, "b") == "f:1"

    def test_restore_asks_first(self, run, tmp_path, table, monkeypatch):
        path = str(tmp_path / "offsets.json")
        run("backup", path)
        monkeypatch.setattr("builtins.input", lambda _prompt: "n")

        with pytest.raises(SystemExit, match="nothing was changed"):
            run("restore", path)

    def test_restore_without_a_terminal_changes_nothing(self, run, tmp_path, table, monkeypatch):
        path = str(tmp_path / "offsets.json")
        run("backup", path)
        monkeypatch.setattr("sys.stdin", io.StringIO(""))

        with pytest.raises(SystemExit, match="nothing was changed; -y does it without a question"):
            run("restore", path)


def test_local_hands_over_to_the_services_own_command_line(capfd):
    arguments = parser().parse_args(["local", "--", "--help"])
    with pytest.raises(SystemExit) as ended:
        arguments.func(arguments)

    assert ended.value.code == 0
    assert "snowpipe-local" in capfd.readouterr().out


def test_local_without_the_service_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = parser().parse_args(["local", "--", "--help"])

    with pytest.raises(SystemExit, match=r'pip install "airflow-provider-snowpipe\[local\]"'):
        arguments.func(arguments)


def test_commands_run_without_airflows_command_line(local_service, table, tmp_path):
    stored = json.loads(local_service.env["AIRFLOW_CONN_SNOWFLAKE_DEFAULT"])
    stored["extra"]["ca_bundle"] = str(local_service.ca_file)
    env = {**os.environ, "AIRFLOW_CONN_STORED": json.dumps(stored)}
    command = [sys.executable, "-m", "airflow_provider_snowpipe.cli", "channels", "--conn-id", "stored"]

    done = subprocess.run(
        [*command, "--table", table, "--output", "json"], env=env, capture_output=True, text=True, timeout=600
    )

    assert done.returncode == 0, done.stderr
    assert [one["channel"] for one in json.loads(done.stdout)] == ["a", "b"]


@pytest.mark.skipif(AIRFLOW < (3, 2), reason="Airflow asks providers for commands since 3.2")
def test_airflow_offers_the_commands():
    from airflow.cli.cli_parser import get_parser

    parsed: Any = get_parser().parse_args(["snowpipe", "backup", "/tmp/x", "--table", "T", "--dry-run"])  # noqa: S108

    assert (parsed.path, parsed.table, parsed.dry_run) == ("/tmp/x", "T", True)  # noqa: S108


def test_the_help_of_local_names_every_command_of_the_service(capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(["--help"])
    shown = capsys.readouterr().out
    of_service = subprocess.run(
        [Path(sys.executable).with_name("snowpipe-local"), "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    commands = re.findall(r"^    (\S+)", of_service.stdout, re.MULTILINE)

    assert f"({', '.join(commands)})" in " ".join(shown.split())
    assert len(commands) > 5
