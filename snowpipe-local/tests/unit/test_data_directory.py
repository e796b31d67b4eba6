"""A data directory that is damaged, or of somebody else: one line that names the file, no traceback."""

import json

import pytest
from snowpipe_local.accounts import ensure_account
from snowpipe_local.cli import main
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.environment import run_statement


@pytest.fixture
def home(tmp_path):
    """A directory on which a service was started once."""
    found = DataDirectory(tmp_path / "service")
    found.create()
    ensure_account(found)
    found.remember_ports(1, 2)
    return found


def printed(capsys, *argv):
    assert main(argv) == 1
    return capsys.readouterr().err


def test_what_keeps_a_service_from_starting_is_named(home, capsys):
    file, lock = home.databases_dir / "LOCAL.duckdb", home.root / "lock"
    file.write_bytes(b"no database")
    text = printed(capsys, "serve", "--data-dir", str(home.root))
    assert text.startswith(f"snowpipe-local: {file} cannot be opened: it is damaged, or a newer version")
    lock.unlink(missing_ok=True)
    lock.mkdir()
    text = printed(capsys, "serve", "--data-dir", str(home.root))
    assert text.startswith(f"snowpipe-local: cannot use {home.root} as data directory")


def test_a_damaged_account_or_key_is_named_with_the_remedy_and_not_shown(home, capsys):
    for content in ["", "-----BEGIN PRIVATE KEY-----\nMIIE"]:
        home.key_file.write_text(content)
        text = printed(capsys, "sql", "--data-dir", str(home.root), "SELECT 1")
        assert text.startswith(f"snowpipe-local: {home.key_file} does not hold the private key of LOCAL.DEMO")
        assert "MIIE" not in text
    for command in [("env",), ("sql", "SELECT 1"), ("status", "--once"), ("rotate-key",)]:
        for content in ['{"account": ', "{}", "[]", '{"account": 1}', ""]:
            home.account_file.write_text(content)
            text = printed(capsys, command[0], "--data-dir", str(home.root), *command[1:])
            assert text.startswith(f"snowpipe-local: {home.account_file} is not JSON with account, user")
            assert "delete it" in text
    home.account_file.unlink()
    home.account_file.mkdir()  # a test may run as root, who may read everything
    text = printed(capsys, "env", "--data-dir", str(home.root))
    assert f"{home.account_file} cannot be read (Is a directory)" in text


def test_json_has_no_number_that_json_lacks(home, monkeypatch):
    values = [[float("nan"), float("inf"), -float("inf"), 1.5]]
    monkeypatch.setattr("snowpipe_local.environment.fetch", lambda *_: (["A", "B", "C", "D"], values))
    text = run_statement(home, "SELECT 1", "json")
    assert json.loads(text, parse_constant=pytest.fail) == [{"A": "NaN", "B": "inf", "C": "-inf", "D": 1.5}]
