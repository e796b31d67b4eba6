"""Pytest plugin that points a foreign suite at the local service; scripts/foreign_suites.py loads it.

It runs in the suite's own environment, where neither this project nor Airflow is installed.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
import snowflake.connector

_REPORT = Path(os.environ["FOREIGN_REPORT"])
_SUITE = os.environ["FOREIGN_SUITE"]
_ACCOUNT: dict[str, Any] = json.loads(os.environ["FOREIGN_CONNECTION"])
_OWN_DATABASES = frozenset({"LOCAL", "SNOWFLAKE"})
_connect = snowflake.connector.connect


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.outcome == "rerun" or (report.when != "call" and report.passed):
        return
    last = str(report.longrepr or "").strip().splitlines()[-1:]
    crash = getattr(report.longrepr, "reprcrash", None)
    _write(report.nodeid, report.outcome, report.duration, crash.message if crash else "".join(last))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(report.nodeid, "failed", 0, str(report.longrepr)[-400:])


def _write(test: str, outcome: str, seconds: float, why: str) -> None:
    line = {"id": test, "outcome": outcome, "seconds": round(seconds, 2), "why": why}
    with _REPORT.open("a") as out:
        out.write(json.dumps(line) + "\n")


# -- fakesnow -------------------------------------------------------------------------------------------


def _replace_fakesnow() -> None:
    """Let fakesnow's entry points hand out real connections to the local service."""
    import fakesnow

    @contextmanager
    def patched(
        *targets: str,
        create_database_on_connect: bool = True,
        create_schema_on_connect: bool = True,
        **_: Any,
    ) -> Iterator[None]:
        connect = _connecting(create_database_on_connect, create_schema_on_connect)
        with ExitStack() as stack:
            for target in ("snowflake.connector.connect", *targets):
                if target.rpartition(".")[2] == "connect":
                    stack.enter_context(patch(target, connect))
            yield

    @contextmanager
    def server(**_: Any) -> Iterator[dict[str, Any]]:
        with patch("snowflake.connector.connect", _connecting()):
            yield dict(_ACCOUNT)

    fakesnow.patch = patched
    fakesnow.server = server


def _connecting(database: bool = True, schema: bool = True) -> Callable[..., Any]:
    def connect(*_: Any, **given: Any) -> Any:
        # The suite's own user, account and host are inventions.
        required = {name: value for name, value in given.items() if name not in _ACCOUNT}
        names = {part: required[part] for part in ("database", "schema") if required.get(part)}
        with _connect(**_ACCOUNT) as session, session.cursor() as cursor:
            if database and "database" in names:
                cursor.execute(f"CREATE DATABASE IF NOT EXISTS {names['database']}")
            if schema and len(names) == 2 and names["schema"].upper() != "INFORMATION_SCHEMA":
                cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {names['database']}.{names['schema']}")
        return _connect(**_ACCOUNT, **required)

    return connect


@pytest.fixture(autouse=True)
def _fresh_account() -> Iterator[None]:
    yield
    if _SUITE != "fakesnow":
        return
    with _connect(**_ACCOUNT) as session, session.cursor() as cursor:
        for row in cursor.execute("SHOW DATABASES").fetchall():
            if row[1] not in _OWN_DATABASES:
                cursor.execute(f'DROP DATABASE "{row[1]}"')


# -- Snowpark -------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _in_a_schema(request: pytest.FixtureRequest) -> Iterator[None]:
    """A session whose schema was dropped has none, and tests of the same file go on in it."""
    yield
    session = getattr(request.node, "funcargs", {}).get("session") if _SUITE == "snowpark" else None
    if session is not None and not session._conn._conn.is_closed():
        session._conn._conn.cursor().execute("USE SCHEMA LOCAL.PUBLIC")


# The suites' conftest files import both before any hook of a plugin is called.
_REPORT.touch()
if _SUITE in {"connector", "snowpark"}:
    for _name in ("test.parameters", "tests.parameters", "parameters"):
        sys.modules[_name] = ModuleType(_name)
        sys.modules[_name].CONNECTION_PARAMETERS = dict(_ACCOUNT)  # type: ignore[attr-defined]
elif _SUITE == "fakesnow":
    _replace_fakesnow()
if _SUITE.startswith("sqlalchemy"):
    # A test drops tables that a session of its own has changed, for which a DROP waits here.
    snowflake.connector.connect = lambda *given, **named: _connect(
        *given, **{"session_parameters": {"LOCK_TIMEOUT": 10}, **named}
    )
if _SUITE == "snowpark":
    import tests.integ.session_parameters as _of_session

    # They set parameters that only Snowflake's own accounts have.
    _of_session.set_up_test_session_parameters = lambda *_: None

    _execute = snowflake.connector.cursor.SnowflakeCursor.execute

    def _executed(cursor: Any, command: str, *given: Any, **named: Any) -> Any:
        # Fixtures choose where Python functions, which are refused here, would find their packages.
        is_about_functions = command.startswith("ALTER SCHEMA SET DEFAULT_PYTHON_ARTIFACT_REPOSITORY")
        return _execute(cursor, "SELECT 1" if is_about_functions else command, *given, **named)

    snowflake.connector.cursor.SnowflakeCursor.execute = _executed  # type: ignore[method-assign]
