"""The command line of the local service: env, sql, status."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from snowpipe_local.cli import main
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.environment import variables
from snowpipe_local.testing import LocalService
from tests.streaming_rest import Rest, continuation


@pytest.mark.parametrize("own", [None, '{"conn_type": "spark", "host": "yarn"}'], ids=["none", "own"])
def test_spark_connection_is_exported_where_there_is_none(
    local_service: LocalService, monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT", raising=False)
    if own is not None:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", own)
    exported = variables(DataDirectory(local_service.data_dir))["AIRFLOW_CONN_SPARK_DEFAULT"]
    assert json.loads(exported) == json.loads(own or '{"conn_type": "spark", "host": "local[*]"}')


def test_a_shell_can_evaluate_the_export_lines(local_service: LocalService) -> None:
    exports = local_service.cli("env").stdout
    assert all(line.startswith("export ") for line in exports.splitlines())
    shown = subprocess.run(
        ["/bin/sh", "-c", exports + 'printf "%s" "$AIRFLOW_CONN_SNOWFLAKE_DEFAULT"'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    connection = json.loads(shown)
    assert (connection["conn_type"], connection["extra"]["port"]) == ("snowflake", local_service.port)
    assert connection["extra"]["private_key_file"] == str(local_service.key_file)
    bundle = Path(local_service.env["SSL_CERT_FILE"]).read_text()
    assert local_service.ca_file.read_text().strip() in bundle
    assert bundle.count("BEGIN CERTIFICATE") > 50


def test_rows_are_printed_as_json_csv_or_a_table(local_service: LocalService) -> None:
    local_service.sql(
        "CREATE TABLE j AS SELECT 1 AS id, 2.5 AS x, 'ü\"' AS s, true AS b, "
        "PARSE_JSON('{\"a\":[1]}') AS v, '2026-01-02'::DATE AS d"
    )
    local_service.sql("INSERT INTO j (id) VALUES (2)")
    assert local_service.sql("SELECT * FROM j ORDER BY id") == [
        {"ID": 1, "X": 2.5, "S": 'ü"', "B": True, "V": {"a": [1]}, "D": "2026-01-02"},
        {"ID": 2, "X": None, "S": None, "B": None, "V": None, "D": None},
    ]
    assert local_service.sql("SELECT * FROM j WHERE id = 3") == []
    many = local_service.sql("SELECT SEQ4() AS n FROM TABLE(GENERATOR(ROWCOUNT => 20001)) ORDER BY 1")
    assert [row["N"] for row in many] == list(range(20_001))
    later = "DATEADD(year, 18081, '2026-01-02'::"
    assert local_service.sql(f"SELECT {later}DATE) AS d, {later}TIMESTAMP_LTZ) AS l") == [
        {"D": "20107-01-02", "L": "20107-01-02T00:00:00+00:00"}
    ]
    statement = "SELECT 1 AS a, 'x,y' AS b, NULL AS c"
    assert local_service.cli("sql", "--format", "csv", statement).stdout == 'A,B,C\n1,"x,y",\n'
    shown = local_service.cli("sql", statement).stdout
    assert shown.splitlines() == ["A | B   | C", "--+-----+-----", "1 | x,y | NULL", "(1 row)"]


def test_a_failing_statement_exits_non_zero_with_snowflakes_code(local_service: LocalService) -> None:
    for statement, code in (
        ("SELECT * FROM no_such_table", "002003"), ("SELEC 1", "001003"), ("SELECT 'x'::INT", "100038"),
        ("SELECT 1; SELECT 2", "000008"), ("", "000900"),
    ):  # fmt: skip
        done = local_service.cli("sql", statement)
        assert (done.returncode, code in done.stderr, "Traceback" in done.stderr) == (1, True, False)
    done = local_service.cli("sql", "PUT file:///tmp/x @~")
    assert (done.returncode, "Python connector" in done.stderr) == (1, True)


def test_wrong_settings_of_the_machine_do_not_matter(
    local_service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", os.devnull)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert local_service.cli("sql", "SELECT 1").returncode == 0


def _status(service: LocalService) -> dict[str, Any]:
    done = service.cli("status", "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def _channels(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (database,) = (each for each in status["databases"] if each["name"] == "LOCAL")
    return {channel["name"]: channel for pipe in database["pipes"] for channel in pipe["channels"]}


def _row(number: int) -> bytes:
    return b'{"id":%d}\n' % number


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    """A service with one committed and one waiting channel; the last test of them stops it."""
    # The path of its socket is longer than the address of a socket may be.
    service = LocalService(tmp_path_factory.mktemp("waiting") / ("d" * 60) / ("e" * 60), admin=True)
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
    assert json.loads(waiting.cli("admin", "clock", "--move", "1d").stdout)["moved_seconds"] == 86_400
    done = waiting.cli("status", "--once")
    assert done.returncode == 0, done.stderr
    assert "clock moved by 1 days" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if "waits" in line)
    for text in ("LOCAL", "PUBLIC.T-STREAMING", "FAILED OVER", "NULL", "2 (18 B)"):
        assert text in line
    waiting.admin("failover", pipe="LOCAL.PUBLIC.T-STREAMING", back=True)


def test_a_shell_that_evaluated_env_needs_no_data_dir_and_no_other_credential_opens_the_status(
    waiting: LocalService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SNOWPIPE_LOCAL_PRIVATE_KEY_FILE", raising=False)
    assert main(["status", "--json"]) == 1
    assert "--data-dir" in capsys.readouterr().err
    monkeypatch.setenv("SNOWPIPE_LOCAL_PRIVATE_KEY_FILE", waiting.env["SNOWPIPE_LOCAL_PRIVATE_KEY_FILE"])
    assert main(["status", "--json"]) == 0
    assert set(_channels(json.loads(capsys.readouterr().out))) == {"done", "waits"}
    rest = Rest(waiting, "T")
    foreign = jwt.encode({"sub": "LOCAL.DEMO", "iss": "x"}, "k" * 32, algorithm="HS256")
    for token in ("", rest.account.scoped_token, foreign, "nonsense"):
        assert rest.account.call("GET", "/local/status", token=token).status_code == 401


def test_a_service_that_does_not_answer_has_neither_status_nor_environment(waiting: LocalService) -> None:
    waiting.kill()
    for command in (("status", "--once"), ("env",)):
        done = waiting.cli(*command)
        assert (done.returncode, done.stdout, "does not answer" in done.stderr) == (1, "", True)
