"""``airflow snowpipe doctor``: each check's good and bad case, against a real local service."""

import email.utils
import functools
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from airflow_provider_snowpipe.cli import doctor as module
from airflow_provider_snowpipe.cli.definition import parser
from airflow_provider_snowpipe.cli.doctor import Doctor, Finding
from airflow_provider_snowpipe.spark.submit import local_spark
from tests.airflow_connections import PAT
from tests.local_connection import connect
from tests.scripted_service import Reply

PAGE = Path(__file__).parents[3] / "docs" / "production.md"
Diagnose = Callable[..., dict[str, Finding]]


# Java and the installed packages are asked once, not by each of these tests.
asked_java_version = functools.cache(local_spark.java_version)
asked_version = functools.cache(module.installed_version)


@pytest.fixture(autouse=True)
def spark(set_connection, monkeypatch):
    set_connection("spark_default", conn_type="spark", host="local[2]")
    monkeypatch.setattr(local_spark, "java_version", asked_java_version)
    monkeypatch.setattr(module, "installed_version", asked_version)


@pytest.fixture
def diagnose(conn_id):
    """All findings by name, for the connection to the local service unless another is named."""

    def run(other=None, spark_conn_id=None, **options):
        return {one.check: one for one in Doctor(other or conn_id, spark_conn_id, **options).findings()}

    return run


def of_spark(set_connection, host, **fields):
    """The findings for a Spark connection, with a Snowflake connection that is missing."""
    set_connection("spark_other", conn_type="spark", host=host, **fields)
    return {one.check: one for one in Doctor("nowhere", "spark_other").findings()}


def states(found):
    return {name: one.state for name, one in found.items()}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_all_is_well_with_the_local_service(diagnose, table):
    found = diagnose(table=table)

    assert {name: one for name, one in found.items() if one.state != "ok"} == {}
    assert list(found) == [
        "packages", "connection", "key", "tls", "clock", "ingest host", "role", "grants", "pipe",
        "spark connection", "spark-submit", "pyspark", "java", "spark master",
    ]  # fmt: skip
    assert {one.remedy for one in found.values()} == {""}
    assert table in found["pipe"].result
    assert "ACCOUNTADMIN" in found["role"].result


class TestConnection:
    def test_a_missing_one_is_reported_with_how_to_create_it_and_hides_nothing(self, diagnose):
        found = diagnose("nowhere")

        assert states(found) == {
            **dict.fromkeys(found, "ok"),
            "connection": "failed",
            **dict.fromkeys(("key", "tls", "clock", "ingest host", "role", "grants", "pipe"), "skipped"),
        }
        assert "airflow connections add nowhere" in found["connection"].remedy
        assert "snowpipe-local env" in found["connection"].remedy

    def test_of_another_type(self, diagnose, set_connection):
        found = diagnose(set_connection("web", conn_type="http", host="h"))

        assert found["connection"].state == "failed"
        assert "'http'" in found["connection"].result


class TestKey:
    def test_that_cannot_be_read(self, diagnose, local_service, set_connection):
        found = diagnose(connect(local_service, set_connection, extra={"private_key_file": "/no/key.p8"}))

        assert found["key"].state == "failed"
        assert "/no/key.p8" in found["key"].result
        assert [found[name].state for name in ("tls", "ingest host", "role")] == ["ok", "skipped", "skipped"]

    def test_that_others_can_read(self, diagnose, local_service, set_connection, tmp_path):
        copy = tmp_path / "key.p8"
        copy.write_bytes(local_service.key_file.read_bytes())
        copy.chmod(0o644)
        found = diagnose(connect(local_service, set_connection, extra={"private_key_file": str(copy)}))

        assert (found["key"].state, found["key"].remedy) == ("warning", f"chmod 600 {copy}")
        assert found["role"].state == "ok"

    def test_of_somebody_else(self, diagnose, local_service, set_connection, pem, tmp_path):
        other = tmp_path / "key.p8"
        other.write_text(pem)
        other.chmod(0o600)
        found = diagnose(connect(local_service, set_connection, extra={"private_key_file": str(other)}))

        for name in ("ingest host", "role"):
            assert found[name].state == "failed"
            assert "RSA_PUBLIC_KEY_FP" in found[name].remedy
            assert found["key"].result.split()[-1] in found[name].remedy


class TestNetwork:
    def test_nobody_answers(self, diagnose, local_service, set_connection):
        found = diagnose(connect(local_service, set_connection, extra={"port": free_port()}))

        assert found["tls"].state == "failed"
        assert "HTTPS_PROXY" in found["tls"].remedy
        assert found["clock"].state == found["ingest host"].state == found["role"].state == "skipped"

    def test_an_untrusted_certificate(self, diagnose, local_service, set_connection, service):
        found = diagnose(connect(local_service, set_connection, extra={"ca_bundle": service.ca_bundle}))

        assert found["tls"].state == "failed"
        assert service.ca_bundle in found["tls"].result

    @pytest.mark.parametrize(("seconds", "state"), [(-50, "ok"), (-90, "failed"), (90, "failed")])
    def test_a_clock_that_differs(self, monkeypatch, service_connection, seconds, state):
        date = email.utils.formatdate(time.time() - seconds, usegmt=True)
        monkeypatch.setattr(BaseHTTPRequestHandler, "date_time_string", lambda _: date)
        found = {one.check: one for one in Doctor(service_connection).findings()}

        assert found["clock"].state == state
        assert ("behind" if seconds < 0 else "ahead") in found["clock"].result

    def test_an_account_that_refuses_the_token(self, service, service_connection):
        service.on("hostname", Reply(401))
        found = {one.check: one for one in Doctor(service_connection).findings()}

        assert [found[name].state for name in ("tls", "ingest host", "pipe")] == ["ok", "failed", "skipped"]
        assert "token" in found["ingest host"].remedy


class TestAccount:
    @pytest.fixture
    def loader(self, local_service, set_connection, table):
        """A connection whose role may do nothing; its id."""
        for statement in (
            "CREATE OR REPLACE ROLE loader",
            "CREATE OR REPLACE ROLE writer",
            f"GRANT ROLE loader TO USER {local_service.user}",
        ):
            local_service.sql(statement)
        return connect(local_service, set_connection, extra={"role": "LOADER"})

    def test_each_missing_grant_is_named_as_sql(self, diagnose, local_service, loader, table):
        before = diagnose(loader, table=table)["grants"]
        assert before.state == "failed"
        for statement in before.remedy.split("; "):
            local_service.sql(statement)

        after = diagnose(loader, table=table)
        assert before.remedy.count("GRANT") == 3
        assert (after["grants"].state, after["pipe"].state) == ("ok", "ok")

    def test_a_grant_to_an_inherited_role_counts(self, diagnose, local_service, loader, table):
        for statement in (
            "GRANT USAGE ON DATABASE LOCAL TO ROLE writer",
            "GRANT USAGE ON SCHEMA LOCAL.PUBLIC TO ROLE writer",
            f"GRANT INSERT ON TABLE {table} TO ROLE writer",
            "GRANT ROLE writer TO ROLE loader",
        ):
            local_service.sql(statement)

        assert diagnose(loader, table=table)["grants"].state == "ok"

    def test_a_table_that_widens_needs_one_more(self, diagnose, local_service, loader, table):
        local_service.sql(f"ALTER TABLE {table} SET ENABLE_SCHEMA_EVOLUTION = TRUE")
        for statement in diagnose(loader, table=table)["grants"].remedy.split("; "):
            local_service.sql(statement)

        assert "EVOLVE SCHEMA" in diagnose(loader, table=table)["grants"].remedy

    def test_a_pipe_of_its_own_is_operated(self, diagnose, local_service, loader, table):
        local_service.sql(
            f"CREATE OR REPLACE PIPE own AS COPY INTO {table} FROM (SELECT $1:ID, $1:NAME FROM "
            "TABLE(DATA_SOURCE(TYPE => 'STREAMING')))"
        )

        assert "OPERATE ON PIPE" in diagnose(loader, pipe="OWN")["grants"].remedy

    def test_the_grants_of_the_installation_page_are_enough(self, diagnose, local_service, set_connection):
        block, *_ = re.findall(r"```sql\n(.+?)```", PAGE.read_text(), re.DOTALL)
        block = re.sub("CREATE (?=ROLE|USER)", "CREATE OR REPLACE ", block)  # another test has made them
        page = re.sub(r" *--.*", "", block).replace("RSA_PUBLIC_KEY = '…'", "PASSWORD = 'unused'")
        for statement in (
            "CREATE OR REPLACE DATABASE ANALYTICS",
            "CREATE TABLE ANALYTICS.PUBLIC.ORDERS (ID INTEGER) ENABLE_SCHEMA_EVOLUTION = TRUE",
            "CREATE PIPE ANALYTICS.PUBLIC.ORDERS_PIPE AS COPY INTO ANALYTICS.PUBLIC.ORDERS FROM (SELECT "
            "$1:ID FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))",
            "CREATE STAGE ANALYTICS.PUBLIC.LANDING",
            "CREATE STAGE ANALYTICS.PUBLIC.LAKE URL = 's3://lake/'",
            "CREATE PIPE ANALYTICS.PUBLIC.FILES AS COPY INTO ANALYTICS.PUBLIC.ORDERS FROM "
            "@ANALYTICS.PUBLIC.LANDING FILE_FORMAT = (TYPE = JSON) MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE",
            "CREATE OR REPLACE WAREHOUSE LOADING",
            *page.split(";")[:-1],
            f"GRANT ROLE LOADER TO USER {local_service.user}",
        ):
            local_service.sql(statement.strip())
        defaults = {"role": "LOADER", "database": "ANALYTICS", "warehouse": "LOADING"}
        loader = connect(local_service, set_connection, extra=defaults)

        for named in ({"table": "ORDERS"}, {"pipe": "ORDERS_PIPE"}):
            found = diagnose(loader, **named)
            assert {name: one for name, one in found.items() if one.state == "failed"} == {}

    def test_a_role_that_the_user_has_not(self, diagnose, local_service, set_connection):
        local_service.sql("CREATE OR REPLACE ROLE others")
        found = diagnose(connect(local_service, set_connection, extra={"role": "OTHERS"}))

        assert "failed" in (found["role"].state, found["ingest host"].state)
        if found["role"].state == "failed":
            assert found["role"].remedy.startswith('GRANT ROLE "OTHERS" TO USER')
            assert "RSA_PUBLIC_KEY" not in found["role"].remedy

    def test_no_warehouse(self, diagnose, local_service, set_connection):
        stored = json.loads(local_service.env["AIRFLOW_CONN_SNOWFLAKE_DEFAULT"])["extra"]
        del stored["warehouse"]
        stored["ca_bundle"] = str(local_service.ca_file)
        found = diagnose(
            set_connection(
                "bare", conn_type="snowflake", login=local_service.user, schema="PUBLIC", extra=stored
            )
        )

        assert found["role"].state in ("ok", "warning")
        assert ("none" in found["role"].result) == (found["role"].state == "warning")


class TestSpark:
    def test_a_connection_that_is_missing(self):
        found = {one.check: one for one in Doctor("nowhere", "spark_nowhere").findings()}

        assert found["spark connection"].state == "failed"
        assert "AIRFLOW_CONN_SPARK_NOWHERE" in found["spark connection"].remedy
        assert found["java"].state == "skipped"

    def test_neither_spark_nor_a_connection(self, monkeypatch):
        monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
        monkeypatch.setattr(
            module, "installed_version", lambda name: None if name == "pyspark" else asked_version(name)
        )
        found = {one.check: one for one in Doctor("nowhere").findings()}

        assert found["spark connection"].state == "skipped"
        assert "[spark]" in found["spark connection"].remedy

    @pytest.mark.parametrize(
        ("host", "extra", "check", "words"),
        [
            ("local", {"spark-binary": "my-submit"}, "spark connection", "my-submit"),
            ("yarn", {"deploy-mode": "cluster"}, "spark connection", "yarn_resourcemanager_webapp_address"),
            ("local", {"spark-binary": "spark3-submit"}, "spark-submit", "spark3-submit"),
        ],
    )
    def test_a_connection_or_program_is_named(self, set_connection, host, extra, check, words):
        found = of_spark(set_connection, host, extra=extra)[check]

        assert (found.state, words in found.result) == ("failed", True)

    def test_two_versions_of_pyspark(self, set_connection, monkeypatch):
        monkeypatch.setattr(
            "airflow_provider_snowpipe.spark.driver.session.installed_version",
            {"pyspark": "4.2.1", "pyspark-client": "4.2.0"}.get,
        )
        found = of_spark(set_connection, "local")

        assert found["pyspark"].state == "failed"
        assert "force-reinstall" in found["pyspark"].result
        assert found["java"].state == "ok"

    def test_no_java(self, set_connection, monkeypatch):
        monkeypatch.setattr("airflow_provider_snowpipe.operators.submission.ensure_java_home", lambda _: None)
        found = of_spark(set_connection, "local")

        assert found["java"].state == "failed"
        assert "JAVA_HOME" in found["java"].result

    def test_a_kubernetes_master_without_its_provider(self, set_connection):
        found = of_spark(set_connection, "k8s://https://127.0.0.1:6443")["spark connection"]

        assert found.state == "ok" or "cncf-kubernetes" in found.remedy

    def test_a_master_that_takes_no_connection(self, set_connection):
        found = of_spark(set_connection, f"spark://127.0.0.1:{free_port()}")

        assert found["spark master"].state == "failed"
        assert "refused" in found["spark master"].result.lower()

    def test_a_spark_connect_server_needs_no_program_and_no_java(self, set_connection):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            set_connection(
                "spark_other", conn_type="spark_connect", host="127.0.0.1", port=port, password="t0ken"
            )
            found = {one.check: one for one in Doctor("nowhere", "spark_other").findings()}

        assert {name: found[name].state for name in ("spark connection", "spark master", "pyspark")} == {
            "spark connection": "ok",
            "spark master": "ok",
            "pyspark": "ok",
        }
        assert {found[name].state for name in ("spark-submit", "java")} == {"skipped"}
        assert found["spark master"].result == f"sc://127.0.0.1:{port} takes connections"
        assert "t0ken" not in str(found)

    def test_one_master_of_two_is_enough(self, set_connection):
        with socket.create_server(("127.0.0.1", 0)) as master:
            found = of_spark(
                set_connection, f"spark://127.0.0.1:{free_port()},127.0.0.1:{master.getsockname()[1]}"
            )

        assert found["spark master"].state == "ok"

    def test_a_master_in_no_known_form(self, set_connection):
        for host in ("spark://", "mesos://a:1", "spark://a:x"):
            assert of_spark(set_connection, host)["spark master"].state == "failed"

    def test_yarn_needs_its_configuration(self, set_connection, monkeypatch, tmp_path):
        for name in ("YARN_CONF_DIR", "HADOOP_CONF_DIR"):
            monkeypatch.delenv(name, raising=False)
        assert "YARN_CONF_DIR" in of_spark(set_connection, "yarn")["spark master"].result

        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
        assert "yarn-site.xml" in of_spark(set_connection, "yarn")["spark master"].result

        (tmp_path / "yarn-site.xml").touch()
        assert of_spark(set_connection, "yarn")["spark master"].state == "ok"


class TestBounds:
    def test_a_check_that_hangs_hides_no_other(self, diagnose, monkeypatch):
        released, checks = threading.Event(), Doctor._checks
        monkeypatch.setattr(Doctor, "_key", lambda _: str(released.wait(60)))
        monkeypatch.setattr(
            Doctor,
            "_checks",
            lambda doctor: [
                replace(one, seconds=0.5) if one.name == "key" else one for one in checks(doctor)
            ],
        )
        try:
            found = diagnose()
        finally:
            released.set()

        assert found["key"].state == "failed"
        assert "0.5 s" in found["key"].result
        assert found["spark connection"].state == "ok"

    def test_the_caller_may_bound_every_check(self, diagnose, monkeypatch):
        released, checks = threading.Event(), Doctor._checks
        monkeypatch.setattr(Doctor, "_packages", lambda _: str(released.wait(60)))
        monkeypatch.setattr(Doctor, "_checks", lambda doctor: checks(doctor)[:1])
        try:
            found = diagnose(seconds=0.4)
        finally:
            released.set()

        assert (found["packages"].state, found["packages"].result) == ("failed", "no answer within 0.4 s")

    def test_an_unexpected_error_shows_no_text(self, diagnose, monkeypatch):
        monkeypatch.setattr(Doctor, "_key", lambda _: {}["hunter2"])
        found = diagnose()

        assert found["key"].result == "unexpected KeyError"


class TestCommand:
    def run(self, capsys, *words):
        arguments = parser().parse_args(["doctor", *words])
        capsys.readouterr()
        try:
            arguments.func(arguments)
        except SystemExit as ended:
            return int(ended.code or 0), capsys.readouterr().out
        return 0, capsys.readouterr().out

    def test_a_table_with_remedies_and_a_failure(self, capsys, conn_id):
        code, printed = self.run(capsys, "--snowflake-conn-id", conn_id, "--table", "NOWHERE")

        assert code == 1
        report = json.loads(self.run(capsys, "--conn-id", conn_id, "--table", "NOWHERE", "--json")[1])
        found = {one["check"]: one for one in report["checks"]}
        assert (report["ok"], found["grants"]["state"], found["pipe"]["state"]) == (False, "failed", "failed")
        assert "NOWHERE" in found["pipe"]["result"]
        assert set(found["pipe"]) == {"check", "state", "result", "remedy", "seconds"}
        for word in ("check", "result", "remedy", "clock", "failed:", "ok:"):
            assert word in printed

    def test_a_table_beside_a_pipe_is_refused_before_anything_is_asked(self, conn_id):
        arguments = parser().parse_args(["doctor", "--conn-id", conn_id, "--table", "A", "--pipe", "B"])

        with pytest.raises(SystemExit, match="table 'A' and pipe 'B' are both given"):
            arguments.func(arguments)

    def test_no_secret_is_printed(self, capsys, service, service_connection):
        service.on("hostname", Reply(401, PAT))
        _, printed = self.run(capsys, "--snowflake-conn-id", service_connection, "--json")

        assert PAT not in printed
