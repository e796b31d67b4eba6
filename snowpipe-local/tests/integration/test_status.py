"""``snowpipe-local status``, and what it shows of commits that are shared and commits of one's own."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from rich.console import Console
from snowpipe_local.cli import main
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.environment import fetch_status, render
from snowpipe_local.testing import LocalService
from tests.streaming_rest import Rest, continuation


def _status(service: LocalService) -> dict[str, Any]:
    done = service.cli("status", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _channels(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (database,) = (each for each in status["databases"] if each["name"] == "LOCAL")
    return {channel["name"]: channel for pipe in database["pipes"] for channel in pipe["channels"]}


def _row(number: int) -> bytes:
    return b'{"id":%d}\n' % number


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    """A service with one committed and one waiting channel; the last test of them stops it."""
    service = LocalService(tmp_path_factory.mktemp("waiting"), admin=True)
    service.start()
    service.sql("CREATE TABLE t (id INT)")
    rest = Rest(service, "T")
    rest.append("done", continuation(rest.open("done")), _row(1) + b"nonsense\n", "1")
    rest.wait_for_token("done", "1")
    service.set_faults("hold-commits")
    token = continuation(rest.open("waits"))
    token = continuation(rest.append("waits", token, _row(1), "1"))
    rest.append("waits", token, _row(2), "2")
    yield service
    service.kill()


def test_the_status_reports_what_is_committed_and_what_waits(waiting: LocalService) -> None:
    status = _status(waiting)
    (database,) = status["databases"]
    (pipe,) = database["pipes"]
    assert (pipe["schema"], pipe["name"], pipe["table"]) == ("PUBLIC", "T-STREAMING", "T")
    channels = _channels(status)
    done, waits = channels["done"], channels["waits"]
    assert (done["committed_token"], done["rows_inserted"], done["rows_error_count"]) == ("1", 1, 1)
    assert (done["uncommitted_appends"], done["uncommitted_bytes"], done["lag_seconds"]) == (0, 0, 0)
    assert (waits["committed_token"], waits["uncommitted_appends"]) == (None, 2)
    assert waits["uncommitted_bytes"] == len(_row(1) + _row(2))
    assert 0 < waits["lag_seconds"] < _channels(_status(waiting))["waits"]["lag_seconds"]
    assert waiting.admin("status")["databases"][0]["pipes"][0]["channels"][1]["uncommitted_appends"] == 2


def test_once_prints_a_table_and_ends(waiting: LocalService) -> None:
    waiting.admin("failover", pipe="LOCAL.PUBLIC.T-STREAMING")
    waiting.admin("clock", move=86_400)
    done = waiting.cli("status", "--once")
    assert done.returncode == 0, done.stderr
    assert "clock moved by 1 days" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if "waits" in line)
    for text in ("LOCAL", "PUBLIC.T-STREAMING", "FAILED OVER", "NULL", "2 (18 B)"):
        assert text in line
    waiting.admin("failover", pipe="LOCAL.PUBLIC.T-STREAMING", back=True)


def test_a_shell_that_evaluated_env_needs_no_data_dir(
    waiting: LocalService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SNOWPIPE_LOCAL_PRIVATE_KEY_FILE", raising=False)
    assert main(["status", "--json"]) == 1
    assert "--data-dir" in capsys.readouterr().err
    monkeypatch.setenv("SNOWPIPE_LOCAL_PRIVATE_KEY_FILE", waiting.env["SNOWPIPE_LOCAL_PRIVATE_KEY_FILE"])
    assert main(["status", "--json"]) == 0
    assert set(_channels(json.loads(capsys.readouterr().out))) == {"done", "waits"}


def test_the_live_view_keeps_the_channels_that_lag_most(waiting: LocalService) -> None:
    status = fetch_status(DataDirectory(waiting.data_dir))
    text = io.StringIO()
    Console(file=text, width=160).print(render(status, {("LOCAL", "PUBLIC.T-STREAMING", "waits"): 12.0}, 8))
    assert "waits" in text.getvalue()
    assert "done" not in text.getvalue()
    assert "1 more channels" in text.getvalue()


def test_only_the_service_s_own_credentials_open_the_status(waiting: LocalService) -> None:
    rest = Rest(waiting, "T")
    url = f"{waiting.url}/local/status"
    assert rest.call("GET", url, rest.jwt).status_code == 200
    foreign = jwt.encode({"sub": "LOCAL.DEMO", "iss": "x"}, "k" * 32, algorithm="HS256")
    for token in (None, rest.token, foreign, "nonsense"):
        assert rest.call("GET", url, token).status_code == 401


def test_a_stopped_service_has_no_status(waiting: LocalService) -> None:
    waiting.kill()
    done = waiting.cli("status", "--once")
    assert done.returncode == 1
    assert "does not answer" in done.stderr
