"""``airflow snowpipe doctor``: each check's good and bad case, against a real local service."""

import email.utils
import functools
import json
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from airflow_provider_snowpipe.cli import doctor as module
from airflow_provider_snowpipe.cli.definition import parser
from airflow_provider_snowpipe.cli.doctor import Doctor
from airflow_provider_snowpipe.spark.submit import local_spark
from tests.airflow_connections import PAT
from tests.local_connection import connect
from tests.scripted_service import Reply

PAGE = Path(__file__).parents[3] / "docs" / "production.md"
ACCOUNT = ("key", "tls", "clock", "ingest host", "role", "grants", "pipe")

# Java and the installed packages are asked once, not by each of these tests.
asked_java_version = functools.cache(local_spark.java_version)
asked_version = functools.cache(module.installed_version)


@pytest.fixture(autouse=True)
def spark(set_connection, monkeypatch):
    set_connection("spark_default", conn_type="spark", host="local[2]")
    monkeypatch.setattr(local_spark, "java_version", asked_java_version)
    monkeypatch.setattr(module, "installed_version", asked_version)


def findings(conn_id, spark_conn_id=None, **options):
    """All findings by name."""
    return {one.check: one for one in Doctor(conn_id, spark_conn_id, **options).findings()}


@pytest.fixture
def diagnose(conn_id):
    """The findings for the connection to the local service unless another is named."""
    return lambda other=None, **options: findings(other or conn_id, **options)


@pytest.fixture
def changed(local_service, set_connection):
    """The findings for a connection to the local service with another extra field."""
    return lambda **extra: findings(connect(local_service, set_connection, extra=extra))


@pytest.fixture
def of_spark(set_connection):
    """The findings for a Spark connection, with a Snowflake connection that is missing."""

    def run(host, **fields):
        set_connection("spark_other", host=host, **{"conn_type": "spark", **fields})
        return findings("nowhere", "spark_other")

    return run


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_all_is_well_with_the_local_service(diagnose, table):
    found = diagnose(table=table)
    assert {name: one for name, one in found.items() if one.state != "ok"} == {}
    of_spark = ("spark connection", "spark-submit", "pyspark", "java", "spark master")
    assert list(found) == ["packages", "connection", *ACCOUNT, *of_spark]
    assert {one.remedy for one in found.values()} == {""}
    assert table in found["pipe"].result
    assert "ACCOUNTADMIN" in found["role"].result


class TestConnection:
    def test_a_missing_one_is_reported_with_how_to_create_it_and_hides_nothing(self, diagnose):
        found = diagnose("nowhere")
        states = {name: one.state for name, one in found.items()}
        skipped = dict.fromkeys(ACCOUNT, "skipped")
        assert states == {**dict.fromkeys(found, "ok"), "connection": "failed", **skipped}
        assert "airflow connections add nowhere" in found["connection"].remedy
        assert "snowpipe-local env" in found["connection"].remedy


class TestKey:
    def test_that_others_can_read(self, changed, local_service, tmp_path):
        copy = tmp_path / "key.p8"
        copy.write_bytes(local_service.key_file.read_bytes())
        copy.chmod(0o644)
        found = changed(private_key_file=str(copy))
        assert (found["key"].state, found["key"].remedy) == ("warning", f"chmod 600 {copy}")
        assert found["role"].state == "ok"

    def test_of_somebody_else(self, changed, pem, tmp_path):
        other = tmp_path / "key.p8"
        other.write_text(pem)
        other.chmod(0o600)
        found = changed(private_key_file=str(other))
        for name in ("ingest host", "role"):
            assert found[name].state == "failed"
            assert "RSA_PUBLIC_KEY_FP" in found[name].remedy
            assert found["key"].result.split()[-1] in found[name].remedy


class TestNetwork:
    def test_nobody_answers(self, changed):
        found = changed(port=free_port())
        assert found["tls"].state == "failed"
        assert "HTTPS_PROXY" in found["tls"].remedy
        assert found["clock"].state == found["ingest host"].state == found["role"].state == "skipped"

    def test_an_untrusted_certificate(self, changed, service):
        found = changed(ca_bundle=service.ca_bundle)["tls"]
        assert (found.state, service.ca_bundle in found.result) == ("failed", True)

    @pytest.mark.parametrize(("seconds", "state"), [(-50, "ok"), (-90, "failed"), (90, "failed")])
    def test_a_clock_that_differs(self, monkeypatch, service_connection, seconds, state):
        date = email.utils.formatdate(time.time() - seconds, usegmt=True)
        monkeypatch.setattr(BaseHTTPRequestHandler, "date_time_string", lambda _: date)
        found = findings(service_connection)["clock"]
        assert (found.state, ("behind" if seconds < 0 else "ahead") in found.result) == (state, True)

    def test_an_account_that_refuses_the_token(self, service, service_connection):
        service.on("hostname", Reply(401, PAT))
        found = findings(service_connection)
        assert [found[name].state for name in ("tls", "ingest host", "pipe")] == ["ok", "failed", "skipped"]
        assert "token" in found["ingest host"].remedy
        assert PAT not in str(found)


class TestAccount:
    @pytest.fixture
    def sql(self, local_service):
        return lambda *statements: [local_service.sql(one) for one in statements]

    @pytest.fixture
    def loader(self, local_service, set_connection, sql, table):
        """A connection whose role may do nothing; its id."""
        sql("CREATE OR REPLACE ROLE loader", f"GRANT ROLE loader TO USER {local_service.user}")
        return connect(local_service, set_connection, extra={"role": "LOADER"})

    def test_each_missing_grant_is_named_as_sql(self, diagnose, sql, loader, table):
        before = diagnose(loader, table=table)["grants"]
        assert (before.state, before.remedy.count("GRANT")) == ("failed", 3)
        sql(*before.remedy.split("; "))
        after = diagnose(loader, table=table)
        assert (after["grants"].state, after["pipe"].state) == ("ok", "ok")
        sql(f"ALTER TABLE {table} SET ENABLE_SCHEMA_EVOLUTION = TRUE")
        assert "EVOLVE SCHEMA" in diagnose(loader, table=table)["grants"].remedy

    def test_the_grants_of_the_installation_page_are_enough(self, local_service, set_connection, sql):
        block, *_ = re.findall(r"```sql\n(.+?)```", PAGE.read_text(), re.DOTALL)
        block = re.sub("CREATE (?=ROLE|USER)", "CREATE OR REPLACE ", block)  # another test has made them
        page = re.sub(r" *--.*", "", block).replace("RSA_PUBLIC_KEY = '…'", "PASSWORD = 'unused'")
        sql(
            "CREATE OR REPLACE DATABASE ANALYTICS",
            "CREATE TABLE ANALYTICS.PUBLIC.ORDERS (ID INTEGER) ENABLE_SCHEMA_EVOLUTION = TRUE",
            "CREATE PIPE ANALYTICS.PUBLIC.ORDERS_PIPE AS COPY INTO ANALYTICS.PUBLIC.ORDERS FROM (SELECT "
            "$1:ID FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))",
            "CREATE STAGE ANALYTICS.PUBLIC.LANDING",
            "CREATE STAGE ANALYTICS.PUBLIC.LAKE URL = 's3://lake/'",
            "CREATE PIPE ANALYTICS.PUBLIC.FILES AS COPY INTO ANALYTICS.PUBLIC.ORDERS FROM "
            "@ANALYTICS.PUBLIC.LANDING FILE_FORMAT = (TYPE = JSON) MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE",
            "CREATE OR REPLACE WAREHOUSE LOADING",
            "CREATE OR REPLACE ROLE others",
            f"GRANT ROLE others TO USER {local_service.user}",
        )
        of_role = {"database": "ANALYTICS", "warehouse": "LOADING"}
        others = connect(local_service, set_connection, extra={"role": "OTHERS", **of_role})
        assert "OPERATE ON PIPE" in findings(others, pipe="ORDERS_PIPE")["grants"].remedy
        sql(*map(str.strip, page.split(";")[:-1]), f"GRANT ROLE LOADER TO USER {local_service.user}")
        loader = connect(local_service, set_connection, extra={"role": "LOADER", **of_role})

        for named in ({"table": "ORDERS"}, {"pipe": "ORDERS_PIPE"}):
            found = findings(loader, **named)
            assert {name: one for name, one in found.items() if one.state == "failed"} == {}


class TestSpark:
    @pytest.mark.parametrize(
        ("host", "extra", "check", "words"),
        [
            ("local", {"spark-binary": "my-submit"}, "spark connection", "my-submit"),
            ("yarn", {"deploy-mode": "cluster"}, "spark connection", "yarn_resourcemanager_webapp_address"),
            ("local", {"spark-binary": "spark3-submit"}, "spark-submit", "spark3-submit"),
            ("spark://", {}, "spark master", ""),
            ("mesos://a:1", {}, "spark master", ""),
            ("spark://a:x", {}, "spark master", ""),
        ],
    )
    def test_a_connection_program_or_master_is_named(self, of_spark, host, extra, check, words):
        found = of_spark(host, extra=extra)[check]
        assert (found.state, words in found.result) == ("failed", True)

    def test_no_java_and_no_kubernetes_provider(self, of_spark, monkeypatch):
        monkeypatch.setattr("airflow_provider_snowpipe.operators.submission.ensure_java_home", lambda _: None)
        found = of_spark("local")["java"]
        assert (found.state, "JAVA_HOME" in found.result) == ("failed", True)
        found = of_spark("k8s://https://127.0.0.1:6443")["spark connection"]
        assert found.state == "ok" or "cncf-kubernetes" in found.remedy

    def test_a_master_that_takes_no_connection_and_one_of_two_that_does(self, of_spark):
        closed = f"spark://127.0.0.1:{free_port()}"
        found = of_spark(closed)["spark master"]
        assert (found.state, "refused" in found.result.lower()) == ("failed", True)
        with socket.create_server(("127.0.0.1", 0)) as master:
            found = of_spark(f"{closed},127.0.0.1:{master.getsockname()[1]}")["spark master"]
        assert found.state == "ok"

    def test_a_spark_connect_server_needs_no_program_and_no_java(self, of_spark):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            found = of_spark("127.0.0.1", conn_type="spark_connect", port=port, password="t0ken")
        assert {found[name].state for name in ("spark connection", "spark master", "pyspark")} == {"ok"}
        assert {found[name].state for name in ("spark-submit", "java")} == {"skipped"}
        assert found["spark master"].result == f"sc://127.0.0.1:{port} takes connections"
        assert "t0ken" not in str(found)

    def test_yarn_needs_its_configuration(self, of_spark, monkeypatch, tmp_path):
        for name in ("YARN_CONF_DIR", "HADOOP_CONF_DIR"):
            monkeypatch.delenv(name, raising=False)
        assert "YARN_CONF_DIR" in of_spark("yarn")["spark master"].result
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
        assert "yarn-site.xml" in of_spark("yarn")["spark master"].result
        (tmp_path / "yarn-site.xml").touch()
        assert of_spark("yarn")["spark master"].state == "ok"


class TestBounds:
    def test_a_check_that_hangs_hides_no_other(self, diagnose, monkeypatch):
        released, checks = threading.Event(), Doctor._checks

        def quick(doctor):
            return [one for one in checks(doctor) if one.name in ("key", "spark connection")]

        monkeypatch.setattr(Doctor, "_key", lambda _: str(released.wait(60)))
        monkeypatch.setattr(Doctor, "_checks", quick)
        try:
            found = diagnose(seconds=0.5)
        finally:
            released.set()

        assert (found["key"].state, found["key"].result) == ("failed", "no answer within 0.5 s")
        assert found["spark connection"].state == "ok"

    def test_an_unexpected_error_shows_no_text(self, diagnose, monkeypatch):
        monkeypatch.setattr(Doctor, "_key", lambda _: {}["hunter2"])
        assert diagnose()["key"].result == "unexpected KeyError"


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
