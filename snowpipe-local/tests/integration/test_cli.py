"""The command line of the local service: serve, env, sql."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.environment import variables
from snowpipe_local.testing import LocalService


def test_env_fails_until_a_service_answers(crash_service: LocalService, tmp_path: Path) -> None:
    assert LocalService(tmp_path / "data").cli("env").returncode != 0
    service = crash_service
    assert service.cli("env").returncode == 0
    service.kill()
    done = service.cli("env")
    assert done.returncode != 0
    assert "does not answer" in done.stderr
    assert done.stdout == ""


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
    assert connection["conn_type"] == "snowflake"
    assert connection["extra"]["port"] == local_service.port
    assert connection["extra"]["private_key_file"] == str(local_service.key_file)


@pytest.mark.parametrize("own", [None, '{"conn_type": "spark", "host": "yarn"}'], ids=["none", "own"])
def test_spark_connection_is_exported_where_there_is_none(
    local_service: LocalService, monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT", raising=False)
    if own is not None:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", own)

    exported = variables(DataDirectory(local_service.data_dir))["AIRFLOW_CONN_SPARK_DEFAULT"]

    assert json.loads(exported) == json.loads(own or '{"conn_type": "spark", "host": "local[*]"}')


def test_no_secret_is_in_the_environment_or_the_log(local_service: LocalService) -> None:
    secret_lines = [line for line in local_service.key_file.read_text().splitlines() if "KEY" not in line]
    shown = local_service.cli("env").stdout + local_service.log_file.read_text()
    assert not any(line in shown for line in secret_lines)


def test_the_bundle_holds_public_roots_and_our_authority(local_service: LocalService) -> None:
    bundle = Path(local_service.env["SSL_CERT_FILE"]).read_text()
    assert local_service.ca_file.read_text().strip() in bundle
    assert bundle.count("BEGIN CERTIFICATE") > 50


def test_json_is_a_list_of_objects_with_native_values(local_service: LocalService) -> None:
    local_service.sql(
        "CREATE OR REPLACE TABLE j (id INT, x NUMBER(10,2), s VARCHAR, b BOOLEAN, v VARIANT, d DATE)"
    )
    local_service.sql(
        "INSERT INTO j SELECT 1, 2.5, 'ü\"', true, PARSE_JSON('{\"a\":[1]}'), '2026-01-02'::DATE "
        "UNION ALL SELECT 2, NULL, NULL, NULL, NULL, NULL"
    )
    assert local_service.sql("SELECT * FROM j ORDER BY id") == [
        {"ID": 1, "X": 2.5, "S": 'ü"', "B": True, "V": {"a": [1]}, "D": "2026-01-02"},
        {"ID": 2, "X": None, "S": None, "B": None, "V": None, "D": None},
    ]
    assert local_service.sql("SELECT * FROM j WHERE id = 3") == []
    many = local_service.sql("SELECT SEQ4() AS n FROM TABLE(GENERATOR(ROWCOUNT => 20001)) ORDER BY 1")
    assert [row["N"] for row in many] == list(range(20_001))
    later = "DATEADD(year, 18081, '2026-01-02'::"
    assert local_service.sql(
        f"SELECT {later}DATE) AS d, {later}TIMESTAMP_NTZ) AS n, {later}TIMESTAMP_LTZ) AS l"
    ) == [{"D": "20107-01-02", "N": "20107-01-02T00:00:00", "L": "20107-01-02T00:00:00+00:00"}]


def test_csv_and_table_are_for_people(local_service: LocalService) -> None:
    statement = "SELECT 1 AS a, 'x,y' AS b, NULL AS c"
    assert local_service.cli("sql", "--format", "csv", statement).stdout == 'A,B,C\n1,"x,y",\n'
    shown = local_service.cli("sql", statement).stdout
    assert shown.splitlines() == ["A | B   | C", "--+-----+-----", "1 | x,y | NULL", "(1 row)"]


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("SELECT * FROM no_such_table", "002003"),
        ("SELEC 1", "001003"),
        ("SELECT 1 +", "001003"),
        ("SELECT no_such_column FROM (SELECT 1 AS a)", "000904"),
        ("SELECT 'x'::INT", "100038"),
        ("SELECT 1; SELECT 2", "000008"),
        ("", "000900"),
        ("CREATE PIPE p AS COPY INTO t FROM @s", "002003"),
        ("CREATE TABLE g (a GEOGRAPHY)", "000002"),
        ("SELECT * FROM LOCAL._snowpipe.channels", "002003"),
        ('SELECT * FROM LOCAL."_snowpipe".channels', "002003"),
        ("SELECT * FROM read_csv('/etc/passwd')", "002140"),
        ("SELECT * FROM '/etc/passwd'", "000002"),
        ("SELECT read_text('/etc/passwd')", "002140"),
        ("USE SCHEMA nowhere", "002043"),
    ],
)
def test_a_failing_statement_exits_non_zero_with_snowflakes_code(
    local_service: LocalService, statement: str, code: str
) -> None:
    done = local_service.cli("sql", statement)
    assert done.returncode == 1
    assert code in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_ca_setting_of_the_machine_does_not_matter(
    local_service: LocalService, tmp_path: Path
) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    environment = {**os.environ, "REQUESTS_CA_BUNDLE": str(empty), "HTTPS_PROXY": "http://127.0.0.1:9"}
    done = subprocess.run(
        ["snowpipe-local", "sql", "--data-dir", str(local_service.data_dir), "SELECT 1"],
        capture_output=True,
        text=True,
        env={**environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_ddl_follows_snowflakes_rules(local_service: LocalService) -> None:
    sql = local_service.sql
    sql("CREATE OR REPLACE DATABASE demo")
    sql("CREATE SCHEMA IF NOT EXISTS demo.raw")
    assert local_service.cli("sql", "CREATE SCHEMA demo.raw").returncode == 1
    sql(
        "CREATE TABLE demo.raw.t (id INT AUTOINCREMENT, "
        "name VARCHAR(5) NOT NULL DEFAULT 'x', \"Odd name\" FLOAT)"
    )
    sql("CREATE TABLE IF NOT EXISTS demo.raw.t (other INT)")
    sql('INSERT INTO demo.raw.t ("Odd name") VALUES (1.5), (2.5)')
    assert sql("SELECT * FROM demo.raw.t ORDER BY id") == [
        {"ID": 1, "NAME": "x", "Odd name": 1.5},
        {"ID": 2, "NAME": "x", "Odd name": 2.5},
    ]
    assert [(row["name"], row["type"], row["null?"]) for row in sql("DESCRIBE TABLE demo.raw.t")] == [
        ("ID", "NUMBER(38,0)", "Y"),
        ("NAME", "VARCHAR(5)", "N"),
        ("Odd name", "FLOAT", "Y"),
    ]
    assert sql("UPDATE demo.raw.t SET name = 'y' WHERE id = 1")[0]["number of rows updated"] == 1
    assert sql("DELETE FROM demo.raw.t WHERE id = 1") == [{"number of rows deleted": 1}]
    sql("CREATE TABLE demo.raw.copy AS SELECT id, name FROM demo.raw.t")
    assert [row["name"] for row in sql("SHOW TABLES IN SCHEMA demo.raw")] == ["COPY", "T"]
    sql("DROP TABLE demo.raw.t")
    sql("DROP TABLE IF EXISTS demo.raw.t")
    assert local_service.cli("sql", "DROP TABLE demo.raw.t").returncode == 1
    sql("DROP DATABASE demo")
    assert "DEMO" not in [row["name"] for row in sql("SHOW DATABASES")]


def test_queries_follow_snowflakes_names_and_paths(local_service: LocalService) -> None:
    sql = local_service.sql
    sql("CREATE OR REPLACE TABLE q (id INT, v VARIANT)")
    sql('INSERT INTO q SELECT 1, PARSE_JSON(\'{"a":{"b":[10,"x"]}}\')')
    assert sql("SELECT count(*), v:a.b[1]::STRING AS s, v['a']['b'][0]::INT AS n FROM q GROUP BY ALL") == [
        {"COUNT(*)": 1, "S": "x", "N": 10}
    ]
    assert sql(
        "WITH c AS (SELECT id FROM q) SELECT CURRENT_DATABASE() d, c.id FROM c JOIN q ON c.id = q.id"
    ) == [{"D": "LOCAL", "ID": 1}]


def test_definitions_and_secrets_survive_kill_9(crash_service: LocalService) -> None:
    service = crash_service
    secrets = [service.data_dir / name for name in ("demo_pat", "oauth_client.json", "demo_password")]
    service.sql("CREATE DATABASE other")
    service.sql("CREATE TABLE other.public.t (id INT NOT NULL, at TIMESTAMP_TZ, a ARRAY) CLUSTER BY (id)")
    service.sql("CREATE TABLE evolving (id INT) ENABLE_SCHEMA_EVOLUTION = TRUE")

    def defined() -> list[list[dict[str, Any]]]:
        statements = ("DESCRIBE TABLE other.public.t", "SHOW TABLES IN DATABASE other", "SHOW TABLES")
        return [service.sql(statement) for statement in statements]

    before, kept = defined(), [file.read_text() for file in secrets]
    service.kill()
    service.start()

    assert defined() == before
    assert before[0][1]["type"] == "TIMESTAMP_TZ(9)"
    assert (before[1][0]["cluster_by"], before[2][0]["enable_schema_evolution"]) == ("LINEAR(ID)", "Y")
    assert [file.read_text() for file in secrets] == kept
    assert {stat.S_IMODE(file.stat().st_mode) for file in secrets} == {0o600}
    shown = service.log_file.read_text() + service.cli("env").stdout
    assert kept[0].strip() not in shown
    assert json.loads(kept[1])["client_secret"] not in shown
    assert len(kept[2].strip()) >= 32
    assert kept[2].strip() not in shown
