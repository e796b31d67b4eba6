"""Node's snowflake-sdk and the JDBC driver, as they are published, against the local service."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.java_options import cache_folder
from tests.local_service import LocalService
from tests.maven_jars import maven_jars

_CLIENTS = Path(__file__).parents[1] / "clients"
_NODE_SDK = "snowflake-sdk@3.3.0"
_JDBC = "net.snowflake:snowflake-jdbc:3.24.2"
_SECONDS = 240

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


def _run(command: list[str], service: LocalService, **extra: str) -> str:
    base = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "JAVA_HOME") if name in os.environ}
    done = subprocess.run(
        command,
        env=service.process_env(base) | extra,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    return done.stdout


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
        "put": [["more.csv.gz", "UPLOADED"]],
        "copied": [["LOADED", 2]],
        "got": [["in/more.csv.gz", "DOWNLOADED"]],
    }
    assert gzip.decompress((tmp_path / "got/more.csv.gz").read_bytes()) == b"4,four\n5,five\n"


def test_jdbc_selects_inserts_moves_files_and_reads_metadata(
    local_service: LocalService, tmp_path: Path
) -> None:
    (driver,) = maven_jars(_JDBC)
    store = tmp_path / "trust.p12"
    trusted = ["-keystore", str(store), "-storetype", "PKCS12", "-storepass", "changeit"]
    _run(
        ["keytool", "-importcert", "-noprompt", "-file", str(local_service.ca_file), *trusted], local_service
    )
    printed = _run(
        [
            "java",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            # The driver reads Arrow through it.
            "--add-opens=java.base/java.nio=ALL-UNNAMED",
            f"-Djavax.net.ssl.trustStore={store}",
            "-Djavax.net.ssl.trustStorePassword=changeit",
            "-cp",
            str(driver),
            str(_CLIENTS / "JdbcClient.java"),
            str(tmp_path),
        ],
        local_service,
    )
    at = "2026-01-02 03:04:05.678"
    columns = (
        "[ID, -5, NUMBER, 38] [NAME, 12, VARCHAR, 16777216] [AT, 93, TIMESTAMPNTZ, 0] [PRICE, 3, NUMBER, 9]"
    )
    assert printed.splitlines() == [
        f"rows: [1, row 1, {at}, 1.25] [2, row 2, {at}, 1.25] [3, null, null, null]",
        "first: [1]",
        "second: [2]",
        "put: [more.csv.gz, UPLOADED]",
        "copied: [jdbc_files/in/more.csv.gz, LOADED, 2, 2]",
        "got: [in/more.csv.gz, DOWNLOADED]",
        "tables: [LOCAL, PUBLIC, JDBC_ROWS, TABLE]",
        f"columns: {columns}",
    ]
    assert gzip.decompress((tmp_path / "got/more.csv.gz").read_bytes()) == b"4,four\n5,five\n"
