"""Clients as they are published, each in an environment of its own, against the local service."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from snowpipe_local.testing import LocalService
from tests.clients.packages import UnavailableError, cache_folder, client_python, maven_jar

_CLIENTS = Path(__file__).parents[1] / "clients"
_NODE_SDK = "snowflake-sdk@3.3.0"
_JDBC = ("net.snowflake:snowflake-jdbc:3.24.2", "net.snowflake:snowflake-jdbc:4.4.1")
_SNOWPARK = "snowflake-snowpark-python[pandas]==1.56.0"
_SQLALCHEMY = (
    ("snowflake-sqlalchemy==1.11.1", "sqlalchemy<2.1", "pandas"),
    ("snowflake-sqlalchemy==2.1.0", "pandas"),
)
_CLI = "snowflake-cli==3.30.0"
_DBT = ("dbt-core==1.11.16", "dbt-snowflake==1.12.4")
_DLT = "dlt[snowflake,parquet]==1.31.0"
_SECONDS = 240
_PAGE = Path(__file__).parents[2] / "docs" / "point-clients.md"
_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


def _run(command: list[str], service: LocalService, folder: Path | None = None, **extra: str) -> str:
    base = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "JAVA_HOME") if name in os.environ}
    done = subprocess.run(
        command,
        cwd=folder,
        env=service.process_env(base) | extra,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    return done.stdout


def _python(client: str, *packages: str) -> str:
    """Return the interpreter of a client's environment; skip the test where it cannot be made."""
    try:
        return str(client_python(client, "".join(f"{package}\n" for package in packages)))
    except UnavailableError as error:
        pytest.skip(str(error))


def _node_modules() -> Path:
    """Fetch Node's driver once into the cache; skip the test where that cannot be done."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip(f"there is no Node with npm to fetch {_NODE_SDK}")
    folder = cache_folder() / _NODE_SDK.replace("@", "-")
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), _NODE_SDK]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"{_NODE_SDK}: npm has not fetched it in {_SECONDS} s")
        if done.returncode != 0:
            pytest.skip(f"{_NODE_SDK} cannot be fetched by npm: {done.stderr[-300:]}")
        (folder / "complete").touch()
    return folder / "node_modules"


def test_node_selects_inserts_and_moves_files(local_service: LocalService, tmp_path: Path) -> None:
    modules = _node_modules()
    (tmp_path / "got").mkdir()
    printed = _run(
        ["node", "--no-warnings", str(_CLIENTS / "node_client.js"), str(tmp_path)],
        local_service,
        NODE_PATH=str(modules),
        NODE_EXTRA_CA_CERTS=str(local_service.ca_file),
    )
    assert json.loads(printed) == {
        "rows": [[1, "one", "2026-01-02T03:04:05.678Z", 1.25], [2, "two", None, None], [3, None, None, None]],
        "several": [{"1": 1}],
        "many": [250_000, True],
        "put": [["more.csv.gz", "UPLOADED"]],
        "copied": [["LOADED", 2]],
        "got": [["in/more.csv.gz", "DOWNLOADED"]],
    }
    assert gzip.decompress((tmp_path / "got/more.csv.gz").read_bytes()) == b"4,four\n5,five\n"


def _go_client(program: str) -> Path:
    """Build a program with Go's driver once into the cache; skip the test where that cannot be done."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no Go to build a client of gosnowflake with")
    sources = {name: (_CLIENTS / "go" / name).read_text() for name in ("go.mod", "go.sum")}
    sources["main.go"] = program
    digest = hashlib.sha256("".join(sources.values()).encode()).hexdigest()[:16]
    folder = cache_folder() / f"go-client-{digest}"
    client = folder / "client"
    if not client.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in sources.items():
            (folder / name).write_text(text)
        options: dict[str, Any] = {"cwd": folder, "capture_output": True, "text": True}
        try:
            done = subprocess.run([go, "mod", "download"], timeout=_SECONDS, check=False, **options)
        except subprocess.TimeoutExpired:
            pytest.skip(f"gosnowflake: go has not fetched it in {_SECONDS} s")
        if done.returncode != 0:
            pytest.skip(f"gosnowflake cannot be fetched by go: {done.stderr[-300:]}")
        built = subprocess.run([go, "build", "-o", str(client), "."], check=False, **options)
        assert built.returncode == 0, built.stderr
    return client


def test_go_selects_inserts_and_moves_files(local_service: LocalService, tmp_path: Path) -> None:
    client = _go_client((_CLIENTS / "go" / "main.go").read_text())
    (tmp_path / "got").mkdir()
    printed = _run([str(client), str(tmp_path)], local_service)
    assert json.loads(printed) == {
        "inserted": 2,
        "rows": [["1", "one", "2026-01-02T03:04:05.678Z", "1.25"], ["2", "two", None, None]],
        "kept": [["3"]],
        "several": [[["1"]], [["2"]]],
        "many": 250_000,
        "put": [["more.csv.gz", "UPLOADED"]],
        "copied": [["go_files/in/more.csv.gz", "LOADED", "2", "2"]],
        "got": [["more.csv.gz", "DOWNLOADED"]],
        "refused": [904, "42000"],
    }
    assert gzip.decompress((tmp_path / "got/more.csv.gz").read_bytes()) == b"4,four\n5,five\n"


def _java(service: LocalService, folder: Path, version: str, program: Path, *arguments: str) -> str:
    """Run a Java program with a version of the JDBC driver; skip the test where it cannot be fetched."""
    try:
        driver = maven_jar(version)
    except UnavailableError as error:
        pytest.skip(str(error))
    store = folder / "trust.p12"
    trusted = ["-keystore", str(store), "-storetype", "PKCS12", "-storepass", "changeit"]
    _run(["keytool", "-importcert", "-noprompt", "-file", str(service.ca_file), *trusted], service)
    quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    # The driver reads Arrow through it.
    opened = "--add-opens=java.base/java.nio=ALL-UNNAMED"
    trust = [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStorePassword=changeit"]
    command = ["java", *quick, opened, *trust, "-cp", str(driver), str(program), *arguments]
    return _run(command, service)


@pytest.mark.parametrize("version", _JDBC, ids=lambda name: name.rpartition(":")[2])
def test_jdbc_selects_inserts_moves_files_and_reads_metadata(
    local_service: LocalService, tmp_path: Path, version: str
) -> None:
    printed = _java(local_service, tmp_path, version, _CLIENTS / "JdbcClient.java", str(tmp_path))
    at = "2026-01-02 03:04:05.678"
    columns = (
        "[ID, -5, NUMBER, 38] [NAME, 12, VARCHAR, 16777216] [AT, 93, TIMESTAMPNTZ, 0] [PRICE, 3, NUMBER, 9]"
    )
    assert printed.splitlines() == [
        f"rows: [1, row 1, {at}, 1.25] [2, row 2, {at}, 1.25] [3, null, null, null]",
        "first: [1]",
        "second: [2]",
        "many: 250000",
        "many: 250000",
        "put: [more.csv.gz, UPLOADED]",
        "copied: [jdbc_files/in/more.csv.gz, LOADED, 2, 2]",
        "got: [in/more.csv.gz, DOWNLOADED]",
        "limited: [1] [2]",
        "tables: [LOCAL, PUBLIC, JDBC_ROWS, TABLE]",
        f"columns: {columns}",
    ]
    assert gzip.decompress((tmp_path / "got/more.csv.gz").read_bytes()) == b"4,four\n5,five\n"


def test_snowpark_makes_frames_changes_tables_and_moves_files(
    local_service: LocalService, tmp_path: Path
) -> None:
    python = _python("snowpark", _SNOWPARK)
    printed = _run([python, str(_CLIENTS / "snowpark_scenario.py"), str(tmp_path)], local_service)
    assert _SNOWPARK.endswith(printed.strip())


@pytest.mark.parametrize("packages", _SQLALCHEMY, ids=lambda packages: packages[0].rpartition("=")[2])
def test_sqlalchemy_creates_fills_reflects_and_queries_tables(
    local_service: LocalService, packages: tuple[str, ...]
) -> None:
    python = _python("sqlalchemy", *packages)
    printed = _run([python, str(_CLIENTS / "sqlalchemy_scenario.py")], local_service)
    assert packages[0].endswith(printed.split()[1])


def test_dbt_seeds_runs_snapshots_tests_and_documents(local_service: LocalService, tmp_path: Path) -> None:
    python = _python("dbt", *_DBT)
    printed = _run([python, str(_CLIENTS / "dbt_scenario.py"), str(tmp_path)], local_service)
    assert _DBT[1].endswith(printed.split()[-1])


def test_dlt_appends_replaces_and_merges(local_service: LocalService, tmp_path: Path) -> None:
    python = _python("dlt", _DLT)
    printed = _run([python, str(_CLIENTS / "dlt_scenario.py"), str(tmp_path)], local_service)
    assert _DLT.endswith(printed.split()[-1])


@pytest.fixture
def snow(local_service: LocalService, tmp_path: Path) -> Callable[..., Any]:
    """Snowflake CLI with the settings that the page writes; returns what it prints."""
    command = Path(_python("snowflake-cli", _CLI)).with_name("snow")
    (settings,) = [block for block in _SHELL.findall(_PAGE.read_text()) if "config.toml" in block]
    _run(["bash", "-euo", "pipefail", "-c", settings], local_service, tmp_path)

    def run(*arguments: str) -> Any:
        line = [str(command), *arguments, "--format", "json"]
        return json.loads(_run(line, local_service, tmp_path, SNOWFLAKE_HOME=str(tmp_path / ".snowflake")))

    return run


def test_snowflake_cli_runs_statements(snow: Callable[..., Any]) -> None:
    assert snow("connection", "test")["Status"] == "OK"
    statements = (
        "CREATE OR REPLACE TABLE by_cli (id INT); INSERT INTO by_cli VALUES (1), (2); SELECT * FROM by_cli"
    )
    created, inserted, selected = snow("sql", "--query", statements)
    assert created == [{"status": "Table BY_CLI successfully created."}]
    assert inserted == [{"number of rows inserted": 2}]
    assert selected == [{"ID": 1}, {"ID": 2}]
    assert snow("sql", "--query", "SELECT '<% word %>' AS w", "--variable", "word=hello") == [{"W": "hello"}]
    assert "BY_CLI" in [row["name"] for row in snow("object", "list", "table")]
    assert [row["name"] for row in snow("object", "describe", "table", "by_cli")] == ["ID"]


def test_snowflake_cli_copies_files_to_stages_and_back(snow: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "more/deep").mkdir(parents=True)
    (tmp_path / "one.csv").write_text("1,one\n")
    (tmp_path / "more/two.csv").write_text("2,two\n")
    (tmp_path / "more/deep/three.csv").write_text("3,three\n")
    snow("stage", "create", "cli_files")
    (put,) = snow("stage", "copy", "one.csv", "@cli_files/in", "--overwrite")
    assert (put["target"], put["status"]) == ("one.csv", "UPLOADED")
    snow("stage", "copy", "more", "@cli_files/more", "--recursive")
    listed = [row["name"] for row in snow("stage", "list-files", "@cli_files")]
    assert sorted(listed) == [
        "cli_files/in/one.csv", "cli_files/more/deep/three.csv", "cli_files/more/two.csv",
    ]  # fmt: skip
    (got,) = snow("stage", "copy", "@cli_files/in", "got")
    assert got["status"] == "DOWNLOADED"
    assert (tmp_path / "got/one.csv").read_text() == "1,one\n"
    assert "CLI_FILES" in [row["name"] for row in snow("object", "list", "stage")]
    assert snow("stage", "remove", "@cli_files", "/in/one.csv")["result"] == "removed"


@pytest.mark.parametrize("language", ["javascript", "java", "go"])
def test_a_program_of_the_page_reads_a_row(
    local_service: LocalService, tmp_path: Path, language: str
) -> None:
    (program,) = re.findall(rf"^```{language}\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    local_service.sql("CREATE OR REPLACE TABLE events AS SELECT 1 AS id, 'pen' AS name")
    file = tmp_path / {"javascript": "events.js", "java": "Events.java", "go": "main.go"}[language]
    file.write_text(program)
    if language == "javascript":
        authority = str(local_service.ca_file)
        modules = str(_node_modules())
        printed = _run(
            ["node", str(file)], local_service, tmp_path, NODE_PATH=modules, NODE_EXTRA_CA_CERTS=authority
        )
    elif language == "java":
        printed = _java(local_service, tmp_path, _JDBC[-1], file)
    else:
        printed = _run([str(_go_client(program))], local_service)
    assert printed.splitlines()[-1].endswith(": pen")
