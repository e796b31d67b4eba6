"""Every route of the OpenAPI description, with data that fits it and data that does not (schemathesis)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
import snowpipe_local
from hypothesis import given
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.fuzz.conftest import cases
from tests.fuzz.wire import ANSWER_SECONDS, Answer, Wire, check

_FILE = Path(snowpipe_local.__file__).with_name("openapi.json")
_CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
]  # fmt: skip
# Names that exist, so that random requests get beyond the first search for a name.
_KNOWN = {
    "database": ["LOCAL", "local"], "schema": ["PUBLIC"], "pipe": ["EVENTS-STREAMING"],
    "channel": ["described", "ELASTIC"], "table": ["EVENTS"], "scope": ["127.0.0.1"],
    "grant_type": ["urn:ietf:params:oauth:grant-type:jwt-bearer", "client_credentials"],
    "sqlText": ["SELECT 1", "SELECT ?"], "statement": ["SELECT 1", "SELECT ?"],
    "continuationToken": ["1_0", "2_0"], "requestId": ["a", "b"], "stage": ["the-stage"],
}  # fmt: skip
# What stands behind "the-stage", known once a service runs.
_KNOWN_STAGE: list[str] = []


@schemathesis.serializer("application/x-ndjson")
def rows_as_they_are(_context: schemathesis.SerializationContext, value: Any) -> bytes:
    """The description calls the rows bytes."""
    return value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")


def _with_known_names(value: Any) -> Any:
    """Return the description with values that exist beside the random ones."""
    if isinstance(value, list):
        return [_with_known_names(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _with_known_names(item) for key, item in value.items()}
    if str(value.get("name")) in _KNOWN and "schema" in value:
        found["schema"] = {"anyOf": [{"enum": _KNOWN[value["name"]]}, value["schema"]]}
    properties = found.get("properties")
    if isinstance(properties, dict):
        for name in properties.keys() & _KNOWN.keys():
            properties[name] = {"anyOf": [{"enum": _KNOWN[name]}, properties[name]]}
    return found


_DESCRIPTION = schemathesis.openapi.from_dict(_with_known_names(json.loads(_FILE.read_text())))
_OPERATIONS = {found.ok().label: found.ok() for found in _DESCRIPTION.get_all_operations()}


@pytest.fixture(scope="module")
def headers(wire: Wire) -> dict[str | None, dict[str, str]]:
    """The header of each kind of security."""
    wire.rows("CREATE TABLE events (id INT, name VARCHAR(10), v VARIANT)")
    wire.open("EVENTS", "described")
    login = {"data": {"LOGIN_NAME": "DEMO", "PASSWORD": wire.service.password}}
    answer = wire.send("POST", "/session/v1/login-request", {}, json.dumps(login).encode())
    token = f'Snowflake Token="{answer.json["data"]["token"]}"'
    put = json.dumps({"sqlText": "PUT file:///tmp/described @~"}).encode()
    answer = wire.send("POST", "/queries/v1/query-request", {"Authorization": token}, put)
    stage_info = answer.json["data"]["stageInfo"]
    _KNOWN_STAGE.append(stage_info["location"].split("/")[1])
    return {
        None: {},
        "file": {"Authorization": f"Bearer {stage_info['creds']['GCS_ACCESS_TOKEN']}"},
        "part": {"x-snowpipe-result-key": "no key"},
        "original": {"Authorization": f"Bearer {wire.jwt}"},
        "scoped": {"Authorization": f"Bearer {wire.scoped}"},
        "session": {"Authorization": token},
        "upload": {"Authorization": "AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/s3/aws4_request"},
    }


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        yield session


@pytest.mark.parametrize("label", [label for label in _OPERATIONS if not label.startswith("HEAD")])
def test_the_answer_to_any_request_conforms_to_the_description(
    wire: Wire, session: requests.Session, headers: dict[str | None, dict[str, str]], label: str
) -> None:
    operation = _OPERATIONS[label]
    described = operation.definition.raw
    security = next((name for scheme in described["security"] for name in scheme), None)
    modes = [operation.as_strategy(GenerationMode.POSITIVE)]
    # A request of which nothing varies cannot be made wrong.
    if "requestBody" in described or {one["in"] for one in described["parameters"]} & {"path", "query"}:
        modes.append(operation.as_strategy(GenerationMode.NEGATIVE))

    @cases(1 / len(_OPERATIONS))
    @given(case=st.one_of(modes))
    def conforms(case: Case) -> None:
        if operation.path == "/session" and (case.query or {}).get("delete") == "true":
            return
        if (case.path_parameters or {}).get("stage") == "the-stage":
            case.path_parameters["stage"] = _KNOWN_STAGE[-1]
        answer = case.call(
            base_url=wire.service.url,
            session=session,
            headers=headers[security],
            timeout=ANSWER_SECONDS,
            verify=str(wire.service.ca_file),
        )
        known = Answer(answer.status_code, (answer.headers.get("content-type") or [""])[0], answer.content)
        check(known, operation.method.upper(), operation.path)
        case.validate_response(answer, checks=_CHECKS)

    conforms()
