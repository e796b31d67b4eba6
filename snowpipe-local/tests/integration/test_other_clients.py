"""Clients as they are published, each in an environment of its own, against the local service."""

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
_CLI = "snowflake-cli==3.30.0"
# Packages by scenario; the first one's version is the last word that the scenario prints.
_PYTHON = {
    "snowpark": ("snowflake-snowpark-python[pandas]==1.56.0",),
    "sqlalchemy-1": ("snowflake-sqlalchemy==1.11.1", "sqlalchemy<2.1", "pandas"),
    "sqlalchemy-2": ("snowflake-sqlalchemy==2.1.0", "pandas"),
    "dbt": ("dbt-snowflake==1.12.4", "dbt-core==1.11.16"),
    "dlt": ("dlt[snowflake,parquet]==1.31.0",),
}
_SECONDS = 240
_PAGE = Path(__file__).parents[2] / "docs" / "point-clients.md"
_UNLOADED = b"4,four\n5,five\n"

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


def _run(command: list[str], service: LocalService, folder: Path | None = None, **extra: str) -> str:
    base = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "JAVA_HOME") if name in os.environ}
    env = service.process_env(base) | extra
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    return done.stdout


def _python(client: str, *packages: str) -> str:
    """Return the interpreter of a client's environment; skip the test where it cannot be made."""
    try:
        return str(client_python(client, "".join(f"{package}\n" for package in packages)))
    except UnavailableError as error:
        pytest.skip(str(error))


def _fetch(name: str, command: list[str], folder: Path) -> None:
    """Fetch something with a tool of its language; skip the test where that cannot be done."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]} to fetch {name}")
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{name}: {command[0]} has not fetched it in {_SECONDS} s")
    if done.returncode != 0:
        pytest.skip(f"{name} cannot be fetched by {command[0]}: {done.stderr[-300:]}")


def _node(service: LocalService, *arguments: str) -> str:
    """Run a program with Node's driver, which is fetched once into the cache."""
    folder = cache_folder() / _NODE_SDK.replace("@", "-")
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), _NODE_SDK]
        _fetch(_NODE_SDK, install, folder)
        (folder / "complete").touch()
    trust = {"NODE_PATH": str(folder / "node_modules"), "NODE_EXTRA_CA_CERTS": str(service.ca_file)}
    return _run(["node", "--no-warnings", *arguments], service, **trust)


def _go(service: LocalService, program: str, *arguments: str) -> str:
    """Run a program with Go's driver, which is built once into the cache."""
    sources = {name: (_CLIENTS / "go" / name).read_text() for name in ("go.mod", "go.sum")}
    sources["main.go"] = program
    digest = hashlib.sha256("".join(sources.values()).encode()).hexdigest()[:16]
    folder = cache_folder() / f"go-client-{digest}"
    if not (folder / "client").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in sources.items():
            (folder / name).write_text(text)
        _fetch("gosnowflake", ["go", "mod", "download"], folder)
        subprocess.run(["go", "build", "-o", "client", "."], cwd=folder, check=True)
    return _run([str(folder / "client"), *arguments], service)


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


def test_node_and_go_select_insert_and_move_files(local_service: LocalService, tmp_path: Path) -> None:
    first, second = [1, "one", "2026-01-02T03:04:05.678Z", 1.25], [2, "two", None, None]
    for language in ("node", "go"):
        (tmp_path / language / "got").mkdir(parents=True)
    printed = _node(local_service, str(_CLIENTS / "node_client.js"), str(tmp_path / "node"))
    assert json.loads(printed) == {
        "rows": [first, second, [3, None, None, None]],
        "several": [{"1": 1}],
        "many": [250_000, True],
        "put": [["more.csv.gz", "UPLOADED"]],
        "copied": [["LOADED", 2]],
        "got": [["in/more.csv.gz", "DOWNLOADED"]],
    }
    printed = _go(local_service, (_CLIENTS / "go" / "main.go").read_text(), str(tmp_path / "go"))
    assert json.loads(printed) == {
        "inserted": 2,
        "rows": [[None if value is None else str(value) for value in row] for row in (first, second)],
        "kept": [["3"]],
        "several": [[["1"]], [["2"]]],
        "many": 250_000,
        "put": [["more.csv.gz", "UPLOADED"]],
        "copied": [["go_files/in/more.csv.gz", "LOADED", "2", "2"]],
        "got": [["more.csv.gz", "DOWNLOADED"]],
        "refused": [904, "42000"],
    }
    for language in ("node", "go"):
        assert gzip.decompress((tmp_path / language / "got/more.csv.gz").read_bytes()) == _UNLOADED


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
        "put: [more.csv.gz, SKIPPED]",
        "put: [more.csv.gz, UPLOADED]",
        "copied: [jdbc_files/in/more.csv.gz, LOADED, 2, 2]",
        "got: [in/more.csv.gz, DOWNLOADED]",
        "limited: [1] [2]",
        "tables: [LOCAL, PUBLIC, JDBC_ROWS, TABLE]",
        f"columns: {columns}",
    ]
    assert gzip.decompress((tmp_path / "got/more.csv.gz").read_bytes()) == _UNLOADED


@pytest.mark.parametrize("client", _PYTHON)
def test_a_scenario_of_a_python_client_succeeds(
    local_service: LocalService, tmp_path: Path, client: str
) -> None:
    kind = client.partition("-")[0]
    python = _python(kind, *_PYTHON[client])
    printed = _run([python, str(_CLIENTS / f"{kind}_scenario.py"), str(tmp_path)], local_service)
    assert _PYTHON[client][0].endswith(printed.split()[-1])


@pytest.fixture
def snow(local_service: LocalService, tmp_path: Path) -> Callable[..., Any]:
    """Snowflake CLI with the settings that the page writes; returns what it prints."""
    command = Path(_python("snowflake-cli", _CLI)).with_name("snow")
    blocks = re.findall(r"^```sh\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (settings,) = [block for block in blocks if "config.toml" in block]
    _run(["bash", "-euo", "pipefail", "-c", settings], local_service, tmp_path)

    def run(*arguments: str) -> Any:
        line = [str(command), *arguments, "--format", "json"]
        return json.loads(_run(line, local_service, tmp_path, SNOWFLAKE_HOME=str(tmp_path / ".snowflake")))

    return run


def test_snowflake_cli_runs_statements_and_copies_files(snow: Callable[..., Any], tmp_path: Path) -> None:
    assert snow("connection", "test")["Status"] == "OK"
    statements = (
        "CREATE OR REPLACE TABLE by_cli (id INT); INSERT INTO by_cli VALUES (1), (2); SELECT * FROM by_cli"
    )
    _, inserted, selected = snow("sql", "--query", statements)
    assert (inserted, selected) == ([{"number of rows inserted": 2}], [{"ID": 1}, {"ID": 2}])
    assert snow("sql", "--query", "SELECT '<% word %>' AS w", "--variable", "word=hello") == [{"W": "hello"}]
    assert "BY_CLI" in [row["name"] for row in snow("object", "list", "table")]
    assert [row["name"] for row in snow("object", "describe", "table", "by_cli")] == ["ID"]
    (tmp_path / "more/deep").mkdir(parents=True)
    for name in ("one.csv", "more/two.csv", "more/deep/three.csv"):
        (tmp_path / name).write_text(name)
    snow("stage", "create", "cli_files")
    (put,) = snow("stage", "copy", "one.csv", "@cli_files/in", "--overwrite")
    assert (put["target"], put["status"]) == ("one.csv", "UPLOADED")
    snow("stage", "copy", "more", "@cli_files/more", "--recursive")
    listed = [row["name"].partition("/")[2] for row in snow("stage", "list-files", "@cli_files")]
    assert sorted(listed) == ["in/one.csv", "more/deep/three.csv", "more/two.csv"]
    (got,) = snow("stage", "copy", "@cli_files/in", "got")
    assert (got["status"], (tmp_path / "got/one.csv").read_text()) == ("DOWNLOADED", "one.csv")
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
        printed = _node(local_service, str(file))
    elif language == "java":
        printed = _java(local_service, tmp_path, _JDBC[-1], file)
    else:
        printed = _go(local_service, program)
    assert printed.splitlines()[-1].endswith(": pen")
