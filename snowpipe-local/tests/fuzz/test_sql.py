"""SQL text, mutated, through the SQL API and the connector protocol: a result or Snowflake's error."""

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.conftest import cases
from tests.fuzz.statements import mutated
from tests.fuzz.wire import Answer, Wire

_CODE = re.compile(r"\d{6}\Z")
_TABLE = "CREATE TABLE IF NOT EXISTS t (id INT, name VARCHAR, v VARIANT)"


@pytest.fixture(autouse=True, scope="module")
def table(wire: Wire) -> Iterator[None]:
    """A table for the statements; whatever they did, the service still runs right ones."""
    wire.rows(_TABLE)
    yield
    for statement in (
        "CREATE SCHEMA IF NOT EXISTS local.public",
        "CREATE OR REPLACE TABLE local.public.after (n INT)",
        "INSERT INTO local.public.after SELECT 41 + 1",
    ):
        wire.rows(statement, schema=None)
    assert wire.rows("SELECT n FROM local.public.after", schema=None) == [["42"]]


@cases(0.7)
@given(statement=mutated())
def test_any_statement_gets_a_result_or_an_error_of_snowflakes_shape(wire: Wire, statement: str) -> None:
    answer = wire.sql(statement)
    if answer.status == 422 and answer.code == "002003" and b"'LOCAL" in answer.body:
        # A case dropped the schema or its table; the next ones need them.
        wire.sql("CREATE SCHEMA IF NOT EXISTS public", schema=None)
        wire.sql(_TABLE)
    assert answer.status in (200, 202, 400, 408, 422), answer
    if answer.status in (408, 422):
        assert _CODE.match(str(answer.code)), answer
        assert re.fullmatch(r"\w{5}", answer.json["sqlState"]), answer


_VALUES = st.one_of(
    st.none(), st.text(max_size=30), st.integers().map(str), st.floats().map(str), st.integers(),
    st.lists(st.text(), max_size=3),
    st.sampled_from(["", "1_0", "0x1", "1e9", "9" * 30, "2026-01-01", "nan", "1234567890 1440", "-", "\x00",
    "true"]),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip
_KINDS = st.sampled_from(
    ["TEXT", "FIXED", "REAL", "BOOLEAN", "BINARY", "DATE", "TIME", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ",
    "TIMESTAMP_TZ",
     "VARIANT", "ANY", "", "nope"]
)  # fmt: skip
_BINDINGS = st.dictionaries(
    st.sampled_from(["1", "2", "3", "0", "x", "-1", "\u0661"]),
    st.fixed_dictionaries({"type": _KINDS, "value": _VALUES}) | _VALUES,
    max_size=3,
)


class Login:
    """A session of the connector protocol; a lost one is opened again."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._token = ""
        self._calls = 0

    def query(self, body: dict[str, Any]) -> Answer:
        """Run one statement; every hundredth in a new session."""
        if self._calls % 100 == 0:
            self._log_in()
        self._calls += 1
        header = {"Authorization": f'Snowflake Token="{self._token}"'}
        target = f"/queries/v1/query-request?requestId={uuid.uuid4()}"
        return self._wire.send("POST", target, header, json.dumps(body).encode())

    def _log_in(self) -> None:
        data = {"AUTHENTICATOR": "SNOWFLAKE_JWT", "TOKEN": self._wire.jwt}
        path = "/session/v1/login-request?databaseName=LOCAL&schemaName=PUBLIC"
        answer = self._wire.send("POST", path, {}, json.dumps({"data": data}).encode())
        assert answer.json["success"] is True, answer
        self._token = answer.json["data"]["token"]


@pytest.fixture(scope="module")
def login(wire: Wire) -> Login:
    return Login(wire)


@cases(0.3)
@given(
    statement=mutated(), bindings=st.none() | _BINDINGS, described=st.booleans(), in_background=st.booleans()
)
def test_any_statement_through_the_connector_protocol_gets_an_answer(
    login: Login, statement: str, bindings: Any, described: bool, in_background: bool
) -> None:
    if re.search(r"RECURSIVE", statement, re.IGNORECASE):
        # Without a time-out this protocol waits for what may never end.
        return
    answer = login.query(
        {"sqlText": statement, "bindings": bindings, "describeOnly": described, "asyncExec": in_background}
    )
    assert answer.status == 200
    if not answer.json["success"]:
        assert _CODE.match(answer.json["code"]), answer
        assert answer.json["code"] != "390111", "the session is lost"
