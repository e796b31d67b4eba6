"""Run a checkout of a foreign test suite against the local service, and compare with the listed failures.

    scripts/foreign_suites.py --suite NAME [--checkout DIR] [--report FILE] [-- PYTEST ARGUMENT…]

``--checkout`` is the source that :data:`SUITES` names, at the version of its requirements or a neighbour.
Without it ``SNOWPIPE_NAME_CHECKOUT`` does, for example ``SNOWPIPE_DBT_CHECKOUT``; a suite without one is
skipped, which is printed. Nothing of them is copied: pytest runs in the checkout, in a virtual environment
of the suite's own in the user's cache, with ``tests/foreign/foreign_plugin.py``, which supplies the
connection parameters and notes the outcomes.

``tests/foreign/SUITE.toml`` lists what fails and why. The exit code is 1 for an unlisted failure, for a
listed test that passes and for fewer passes than the goal. Arguments after ``--`` choose among the tests
(``-k``, ids); then only those are compared.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from snowpipe_local.testing import LocalService

FOLDER = Path(__file__).parents[1]
sys.path.insert(0, str(FOLDER))

from tests.clients.packages import cache_folder  # noqa: E402

LISTS = FOLDER / "tests" / "foreign"
_TEST_SECONDS = 120
_ENDS = (0, 1)
"""What pytest exits with when every test has run: all passed, or some failed."""


@dataclass(frozen=True, slots=True)
class Suite:
    """How one suite is run.

    :param source: where its source is
    :param requirements: of its virtual environment; ``{connector}`` is the installed version
    :param files: glob patterns of the test files that are run, relative to the checkout
    :param without: names of test files among them that do not connect to a Snowflake
    :param arguments: for pytest
    :param environment: variables that the suite reads; ``{user}`` and the like are of the connection
    :param setup: statements run before
    :param goal: least part of the tests, of those in no ``group`` of the list, that has to pass
    :param folder: of the checkout, where pytest runs and which the files are relative to
    :param variable: of its checkout; that of its name where it is empty
    """

    source: str
    requirements: tuple[str, ...]
    files: tuple[str, ...]
    goal: float
    without: frozenset[str] = frozenset()
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    folder: str = ""
    variable: str = ""


_OF_A_SUITE = ("LOCAL", "PUBLIC", "ACCOUNTADMIN", "LOCAL")
"""Database, schema, role and warehouse of suites that make none of their own."""
_SQLALCHEMY = Suite(
    source="https://github.com/snowflakedb/snowflake-sqlalchemy",
    requirements=(
        "snowflake-sqlalchemy==2.0.0a2",
        "snowflake-connector-python[pandas]=={connector}",
        "sqlalchemy>=2.0,<2.1",
        "alembic>=1.13",
        "pytest>=8,<10",
        "pytest-rerunfailures>=13",
        "pytest-timeout>=2.2",
        "pytz",
        "syrupy>=4.6",
    ),
    files=("tests/test_*.py", "tests/custom_tables/test_*.py"),
    goal=0.9,
    arguments=("-o", "addopts="),
    environment={
        "SNOWFLAKE_ACCOUNT": "{account}",
        "SNOWFLAKE_USER": "{user}",
        "SNOWFLAKE_PASSWORD": "{password}",
        "SNOWFLAKE_DATABASE": "{database}",
        "SNOWFLAKE_HOST": "{host}",
        "SNOWFLAKE_PORT": "{port}",
        "SNOWFLAKE_PROTOCOL": "https",
        "SNOWFLAKE_WAREHOUSE": "{warehouse}",
        "SNOWFLAKE_ROLE": "{role}",
    },
    variable="SNOWPIPE_SQLALCHEMY_CHECKOUT",
)


SUITES = {
    "connector": Suite(
        source="https://github.com/snowflakedb/snowflake-connector-python",
        requirements=(
            "snowflake-connector-python[pandas]=={connector}",
            "pytest>=7.4,<10",
            "pytest-asyncio>=0.23",
            "pytest-rerunfailures>=13",
            "pytest-timeout>=2.2",
            "aiohttp>=3.9",
            "boto3>=1.34",
            "more-itertools>=10",
            "pendulum>=3",
            "pytzdata>=2020.1",
        ),
        files=("test/integ/test_*.py", "test/integ/pandas_it/test_*.py"),
        without=frozenset(
            {
                "test_crl.py",
                "test_easy_logging.py",
                "test_network.py",
                "test_proxies.py",
                "test_put_get_with_aws_token.py",
                "test_put_get_with_azure_token.py",
                "test_put_get_with_gcp_account.py",
                "test_vendored_urllib.py",
            }
        ),
        arguments=("-o", "addopts=", "-o", "asyncio_mode=auto", "-p", "no:randomly"),
        environment={"USE_PASSWORD": "true"},
        setup=("CREATE WAREHOUSE IF NOT EXISTS REGRESS",),
        goal=0.95,
    ),
    "fakesnow": Suite(
        source="https://github.com/tekumara/fakesnow",
        requirements=(
            "snowflake-connector-python[pandas]=={connector}",
            "pytest>=8,<10",
            "pytest-timeout>=2.2",
            "boto3>=1.34",
            "dirty-equals>=0.9",
            "duckdb>=1.5,<1.6",
            "moto[server]>=5.2.2",
            "mypy-boto3-s3>=1.34",
            "snowflake-sqlalchemy>=1.7,<2",
            "sqlalchemy>=1.4,<2.1",
            "sqlglot>=30.15,<30.16",
            "starlette>=0.40",
            "uvicorn>=0.30",
        ),
        files=("tests/test_*.py",),
        without=frozenset(
            {
                "test_checks.py",
                "test_cli.py",
                "test_converter.py",
                "test_expr.py",
                "test_matchers.py",
                "test_patch.py",
                "test_statement_type.py",
                "test_transforms.py",
            }
        ),
        goal=0.85,
    ),
    "sqlalchemy": _SQLALCHEMY,
    # The tests that SQLAlchemy has for every dialect.
    "sqlalchemy-dialect": replace(_SQLALCHEMY, files=("tests/sqlalchemy_test_suite/test_suite.py",)),
    "dbt": Suite(
        source="https://github.com/dbt-labs/dbt-adapters",
        requirements=(
            "dbt-snowflake==1.12.4",
            "dbt-core==1.11.16",
            "dbt-tests-adapter>=1.20,<2",
            "snowflake-connector-python=={connector}",
            "pytest>=7,<8",
            "pytest-timeout>=2.2",
        ),
        # Not: models in Python, functions, dynamic tables, catalogs of Iceberg, ways to sign in.
        files=tuple(
            f"tests/functional/adapter/{files}.py"
            for files in (
                "column_types/test_*",
                "custom_schema_tests/test_*",
                "dbt_show/test_*",
                "empty/test_*",
                "incremental/test_*",
                "query_comment_tests/test_*",
                "simple_*/test_*",
                "statement_test/test_*",
                "store_test_failures_tests/test_*",
                "test_[abceg]*",
                "test_persist_docs",
                "test_simple_snapshot",
                "test_timestamps",
                "unit_testing/test_*",
                "utils/test_*",
            )
        ),
        goal=0.9,
        arguments=("-o", "addopts="),
        environment={
            "SNOWFLAKE_TEST_ACCOUNT": "{account}",
            "SNOWFLAKE_TEST_USER": "{user}",
            "SNOWFLAKE_TEST_PASSWORD": "{password}",
            "SNOWFLAKE_TEST_DATABASE": "{database}",
            "SNOWFLAKE_TEST_ALT_DATABASE": "DBT_ALT",
            "SNOWFLAKE_TEST_WAREHOUSE": "{warehouse}",
            "SNOWFLAKE_TEST_ROLE": "{role}",
            "SNOWFLAKE_TEST_HOST": "{host}",
            "SNOWFLAKE_TEST_PORT": "{port}",
            "SNOWFLAKE_TEST_PROTOCOL": "https",
            "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
            **{f"DBT_TEST_USER_{n}": f"dbt_test_role_{n}" for n in (1, 2, 3)},
        },
        setup=(
            "CREATE DATABASE IF NOT EXISTS DBT_ALT",
            *(f"CREATE ROLE IF NOT EXISTS dbt_test_role_{n}" for n in (1, 2, 3)),
        ),
        folder="dbt-snowflake",
    ),
    "dlt": Suite(
        source="https://github.com/dlt-hub/dlt",
        requirements=(
            "dlt[snowflake,parquet]==1.26.0",
            "snowflake-connector-python[pandas]=={connector}",
            "boto3",
            "ibis-framework[duckdb]",
            "mimesis>=7,<8",
            "pytest>=7.4,<8",
            "pytest-cases>=3.8.6",
            "pytest-forked>=1.3",
            "pytest-mock>=3.14",
            "pytest-order>=1",
            "pytest-timeout>=2.3",
            "requests-mock>=1.10",
            "sqlfluff>=2.3.2,<3",
            "sqlglot>=25.4,<28",
            "sqlalchemy<2.1",
        ),
        files=(
            "tests/load/snowflake/test_*.py",
            "tests/load/test_sql_client.py",
            "tests/load/test_job_client.py",
            "tests/load/pipeline/test_merge_disposition.py",
            "tests/load/pipeline/test_replace_disposition.py",
            "tests/load/pipeline/test_write_disposition_changes.py",
        ),
        goal=0.95,
        arguments=("-o", "addopts="),
        environment={
            "ACTIVE_DESTINATIONS": '["snowflake"]',
            "ALL_FILESYSTEM_DRIVERS": '["memory", "file"]',
            "RUNTIME__DLTHUB_TELEMETRY": "false",
            "DESTINATION__SNOWFLAKE__CREDENTIALS": "snowflake://{user}:{quoted}@{account}/{database}"
            "?warehouse={warehouse}&role={role}&host={host}&port={port}",
        },
    ),
    "snowpark": Suite(
        source="https://github.com/snowflakedb/snowpark-python",
        requirements=(
            "snowflake-snowpark-python[pandas]==1.54.0",
            "snowflake-connector-python[pandas]=={connector}",
            "pytest>=7,<9",
            "pytest-timeout>=2.2",
            "python-dateutil",
            "pytz",
            "vcrpy",
            "lxml",
            "snowflake.core",
        ),
        files=(
            "tests/integ/test_column.py",
            "tests/integ/test_column_names.py",
            "tests/integ/test_dataframe.py",
            "tests/integ/test_df_aggregate.py",
            "tests/integ/test_df_sort.py",
            "tests/integ/test_df_to_pandas.py",
            "tests/integ/test_function.py",
            "tests/integ/test_pandas_to_df.py",
            "tests/integ/test_session.py",
            "tests/integ/scala/test_column_suite.py",
            "tests/integ/scala/test_dataframe_*.py",
            "tests/integ/scala/test_literal_suite.py",
            "tests/integ/scala/test_sql_suite.py",
            "tests/integ/scala/test_table_suite.py",
            "tests/integ/scala/test_update_delete_merge_suite.py",
            "tests/integ/scala/test_view_suite.py",
            "tests/integ/scala/test_window_frame_suite.py",
        ),
        goal=0.85,
        arguments=("-o", "addopts=", "--disable_sql_simplifier"),
        setup=("CREATE DATABASE IF NOT EXISTS TESTDB_SNOWPARK",),
    ),
}


@dataclass(frozen=True, slots=True)
class Listed:
    """Tests that are known to fail.

    :param pattern: of ids, where ``*`` stands for any text
    :param why: the reason
    :param group: set where the goal does not count them, for example ``structured types``
    :param varies: True where they pass in some runs
    """

    pattern: str
    why: str
    group: str = ""
    varies: bool = False

    def matches(self, test: str) -> bool:
        """Return True for the id of a test that the entry means."""
        return re.fullmatch(".*".join(map(re.escape, self.pattern.split("*"))), test) is not None


def read_list(file: Path) -> list[Listed]:
    """Read the list of a suite.

    :raises ValueError: for an entry without ids or reason.
    """
    listed = []
    for entry in tomllib.loads(file.read_text()).get("known", []):
        if not entry.get("ids") or not entry.get("why"):
            raise ValueError(f"{file}: an entry needs ids and why: {entry}")
        listed += [
            Listed(one, entry["why"], entry.get("group", ""), entry.get("varies", False))
            for one in entry["ids"]
        ]
    return listed


def python_of(name: str) -> Path:
    """Return the Python of the suite's virtual environment, which is made when its requirements are new."""
    version = importlib.metadata.version("snowflake-connector-python")
    requirements = [line.format(connector=version) for line in SUITES[name].requirements]
    digest = hashlib.sha256("\n".join([sys.version, *requirements]).encode()).hexdigest()[:12]
    folder = cache_folder() / f"foreign-{name.partition('-')[0]}-{digest}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run(
            [sys.executable, "-m", "uv", "venv", "-q", "--clear", "-p", sys.executable, str(folder)],
            check=True,
        )
        install = [sys.executable, "-m", "uv", "pip", "install", "-q", "-p", str(python), *requirements]
        if subprocess.run(install, check=False).returncode != 0:
            raise SystemExit(f"{name}: what the suite needs cannot be installed from PyPI")
        (folder / "complete").touch()
    return python


def run_suite(name: str, checkout: Path, chosen: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """Run the suite against a local service of its own; one record for each test."""
    suite, python, noted = SUITES[name], python_of(name), folder / "noted.jsonl"
    service = LocalService(folder / "service")
    try:
        service.start()
        for statement in suite.setup:
            service.sql(statement)
        connection = {
            "account": service.account,
            "user": service.user,
            "password": service.password,
            "host": "127.0.0.1",
            "port": service.port,
            "protocol": "https",
        }
        if name != "fakesnow":
            connection |= dict(zip(("database", "schema", "role", "warehouse"), _OF_A_SUITE, strict=True))
        texts = connection | {"quoted": quote(service.password)}
        own = {key: text.format(**texts) for key, text in suite.environment.items()}
        files = sorted(
            str(file.relative_to(checkout))
            for pattern in suite.files
            for file in checkout.glob(pattern)
            if file.name not in suite.without
        )
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "SNOW"))}
        environment = (
            kept
            | own
            | service.env
            | {
                # The service's own authority alone: reading the public ones takes longer than most tests.
                "REQUESTS_CA_BUNDLE": str(service.ca_file),
                "SSL_CERT_FILE": str(service.ca_file),
                "SNOWFLAKE_DISABLE_PLATFORM_DETECTION": "true",
                "PYTHONPATH": f"{LISTS}{os.pathsep}{checkout}",
                "FOREIGN_REPORT": str(noted),
                "FOREIGN_SUITE": name,
                "FOREIGN_CONNECTION": json.dumps(connection),
                "CLIENT_LOG_DIR_PATH_DOCKER": str(folder),
            }
        )
        folders = [] if any("::" in one or one.endswith(".py") for one in chosen) else files
        command = [
            str(python),
            "-m",
            "pytest",
            "-p",
            "foreign_plugin",
            "-p",
            "no:cacheprovider",
            "-q",
            "--no-header",
        ]
        command += ["--tb=short", "--timeout", str(_TEST_SECONDS), *suite.arguments, *chosen, *folders]
        code = subprocess.run(command, cwd=checkout, env=environment, check=False).returncode
    finally:
        service.stop()
    if code not in _ENDS:
        raise SystemExit(f"{name}: pytest ended with {code}, so that some tests may not have run")
    return [json.loads(line) for line in noted.read_text().splitlines()]


def compare(records: Sequence[dict[str, Any]], listed: Sequence[Listed], everything: bool) -> dict[str, Any]:
    """Count by file, and find what the list does not have."""
    outcomes: dict[str, str] = {}
    why: dict[str, str] = {}
    for record in records:
        # A test fails by its body, its set-up or its end.
        if outcomes.get(record["id"]) != "failed":
            outcomes[record["id"]], why[record["id"]] = record["outcome"], record["why"]
    files: dict[str, Counter[str]] = {}
    unlisted: list[str] = []
    counted: Counter[str] = Counter()
    groups: Counter[str] = Counter()
    seen: dict[Listed, Counter[str]] = {}
    for test, outcome in outcomes.items():
        known = next((one for one in listed if one.matches(test)), None)
        count = files.setdefault(test.partition("::")[0], Counter())
        count[outcome] += 1
        if known:
            seen.setdefault(known, Counter())[outcome] += 1
        if outcome == "failed" and known:
            count["listed"] += 1
        if outcome == "failed" and not known:
            unlisted.append(test)
        if known and known.group:
            groups[known.group] += outcome != "skipped"
        else:
            counted[outcome] += 1
    ran = counted["passed"] + counted["failed"]
    return {
        "files": {file: dict(count) for file, count in sorted(files.items())},
        "passed": counted["passed"],
        "failed": counted["failed"],
        "skipped": counted["skipped"],
        "not counted": dict(groups),
        "part": counted["passed"] / ran if ran else 0.0,
        "unlisted": sorted(unlisted),
        "listed, passing": sorted(one.pattern for one, count in seen.items() if _passes_now(one, count)),
        "listed, not run": sorted(one.pattern for one in set(listed) - set(seen)) if everything else [],
        "why": {test: why[test] for test, outcome in sorted(outcomes.items()) if outcome == "failed"},
    }


def _passes_now(known: Listed, outcomes: Counter[str]) -> bool:
    """A pattern for several tests stays while one of them fails."""
    return not known.varies and outcomes["passed"] > 0 and outcomes["failed"] == 0


def show(name: str, report: dict[str, Any], goal: float) -> None:
    """Print the counts by file and what differs from the list."""
    columns = ("passed", "failed", "skipped", "listed")
    print(f"{name:<58}" + "".join(f"{column:>9}" for column in columns))
    for file, count in report["files"].items():
        print(f"{file:<58}" + "".join(f"{count.get(column, 0):>9}" for column in columns))
    total = sum((Counter(count) for count in report["files"].values()), Counter())
    print(f"{'all':<58}" + "".join(f"{total[column]:>9}" for column in columns))
    print(f"not counted: {report['not counted'] or 'none'}")
    print(
        f"{report['passed']} of {report['passed'] + report['failed']} pass: "
        f"{report['part']:.1%}; goal {goal:.0%}"
    )
    for test in report["unlisted"]:
        print(f"NOT LISTED {test}: {report['why'][test][:200]!r}")
    for test in report["listed, passing"]:
        print(f"PASSES, LISTED {test}")
    for pattern in report["listed, not run"]:
        print(f"NOT RUN, LISTED {pattern}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one suite; 1 when it differs from its list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkout", type=Path, help="folder of the suite's source")
    parser.add_argument("--suite", choices=sorted(SUITES), required=True, help="which it is")
    parser.add_argument("--report", type=Path, help="JSON file for the counts and each failure's message")
    parser.add_argument("pytest", nargs="*", help="after --: what pytest is given")
    given = parser.parse_args(arguments)
    name = given.suite
    if given.checkout is None:
        variable = SUITES[name].variable or f"SNOWPIPE_{name.upper()}_CHECKOUT"
        if not os.environ.get(variable):
            print(f"foreign_suites: SKIPPED: {name}: {variable} names no checkout of {SUITES[name].source}")
            return 0
        given.checkout = Path(os.environ[variable])
    # As an interrupt does it, so that the service that a suite runs against ends with this.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    checkout = given.checkout.resolve() / SUITES[name].folder
    with tempfile.TemporaryDirectory(prefix="foreign-") as folder:
        records = run_suite(name, checkout, given.pytest, Path(folder))
    report = compare(records, read_list(LISTS / f"{name}.toml"), not given.pytest)
    show(name, report, SUITES[name].goal)
    if given.report:
        given.report.write_text(json.dumps(report, indent=1))
    missed = not given.pytest and report["part"] < SUITES[name].goal
    return int(bool(report["unlisted"] or report["listed, passing"] or missed))


if __name__ == "__main__":
    sys.exit(main())
