"""OpenAPI 3.1 description of every HTTP route of the local service, which it serves at ``/openapi.json``.

One row of :data:`ROUTES` describes one route; :data:`SCHEMAS` has the shapes of bodies and answers. After a
change, ``python -m tests.described_routes`` writes the file that the service serves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "snowpipe_local" / "openapi.json"
_TEXT: dict[str, Any] = {"type": "string"}
_WHOLE: dict[str, Any] = {"type": "integer"}
_FLAG: dict[str, Any] = {"type": "boolean"}
_TEXT_OR_NULL: dict[str, Any] = {"type": ["string", "null"]}
_WHOLE_OR_NULL: dict[str, Any] = {"type": ["integer", "null"]}
_OBJECT: dict[str, Any] = {"type": "object"}
_BYTES: dict[str, Any] = {"type": "string", "format": "binary"}

_JSON, _FORM, _LINES = "application/json", "application/x-www-form-urlencoded", "application/x-ndjson"
_PIPE = "/v2/streaming/databases/{database}/schemas/{schema}/pipes/{pipe}"
_DATA = "/v2/streaming/data/databases/{database}/schemas/{schema}"
_FILE_PIPE = "/v1/data/pipes/{pipe}"
_FILE = "/snowpipe-local-files/{stage}/{file}"
_CHANNEL = "/pipes/{pipe}/channels/{channel}"
_TOKENS = {"startOffsetToken": False, "endOffsetToken": False, "offsetToken": False}
_ATTEMPT = {"requestId": True, "retryCount": False}


def _shape(required: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    properties = {**required, **more}
    return {"type": "object", "required": list(required), "properties": properties}


_STATUS = _shape(
    {
        "database_name": _TEXT, "schema_name": _TEXT, "pipe_name": _TEXT, "channel_name": _TEXT,
        "channel_status_code": _TEXT, "created_on_ms": _WHOLE, "rows_inserted": _WHOLE, "rows_parsed": _WHOLE,
        "rows_error_count": _WHOLE, "last_committed_offset_token": _TEXT_OR_NULL,
    },
    last_error_offset_upper_bound=_TEXT_OR_NULL, last_error_message=_TEXT_OR_NULL,
    last_error_timestamp_ms=_WHOLE_OR_NULL, snowflake_avg_processing_latency_ms=_WHOLE_OR_NULL,
)  # fmt: skip
_FRAGMENT = _shape(
    {"file_path": _TEXT, "fragment_length_bytes": _WHOLE, "iv_base64": _TEXT},
    fragment_start_byte_offset=_WHOLE,
    fragment_start_offset_token=_TEXT,
    fragment_end_offset_token=_TEXT,
)
_BINDING = _shape({"type": _TEXT, "value": {}})

SCHEMAS: dict[str, dict[str, Any]] = {
    "Error": _shape({"code": _TEXT, "message": _TEXT}),
    "Nothing": _OBJECT,
    "Health": _shape({"status": {"const": "ready"}, "instance": _TEXT}),
    "Text": _TEXT,
    "Rows": _BYTES,
    "File": _BYTES,
    "Stored": _shape({"name": _TEXT}),
    "Exchange": _shape({"grant_type": _TEXT, "scope": _TEXT}, subject_token_type=_TEXT),
    "TokenRequest": _shape(
        {"grant_type": _TEXT}, client_id=_TEXT, client_secret=_TEXT, refresh_token=_TEXT, scope=_TEXT
    ),
    "AccessToken": _shape({"access_token": _TEXT, "token_type": {"const": "Bearer"}, "expires_in": _WHOLE}),
    "PipeInfoRequest": _shape({}, generate_new_token=_FLAG, encryption_version=_TEXT),
    "PipeInfo": _shape(
        {"rowset_stage_location": _OBJECT, "durable_stage_location": _OBJECT, "encryption_info": _OBJECT},
        parameter_overrides=_OBJECT,
    ),
    "StatusRequest": _shape({"channel_names": {"type": "array", "items": _TEXT, "maxItems": 100}}),
    "Statuses": _shape({"channel_statuses": {"type": "object", "additionalProperties": _STATUS}}),
    "OpenRequest": _shape({}, offset_token=_TEXT_OR_NULL, fail_on_uncommitted_rows=_FLAG),
    "Opened": _shape({"next_continuation_token": _TEXT, "channel_status": _STATUS}),
    "DropRequest": _shape({}, fail_on_uncommitted_rows=_FLAG),
    "Dropped": _shape({"last_committed_offset_token": _TEXT_OR_NULL}),
    "Appended": _shape({"next_continuation_token": _TEXT}, message=_TEXT),
    "Fragments": {"type": "array", "items": _FRAGMENT, "minItems": 1, "maxItems": 1},
    "Files": _shape(
        {"files": {"type": "array", "items": _shape({"path": _TEXT}, size=_WHOLE), "maxItems": 5000}}
    ),
    "Queued": _shape({"requestId": _TEXT, "status": {"const": "success"}}),
    "Loads": _shape({"pipe": _TEXT, "completeResult": _FLAG, "files": {"type": "array", "items": _OBJECT}}),
    "BucketEvents": _shape({"Records": {"type": "array", "items": _OBJECT}}),
    "Submit": _shape(
        {"statement": _TEXT},
        timeout={"type": "integer", "minimum": 0, "maximum": 604_800},
        database=_TEXT, schema=_TEXT, warehouse=_TEXT, role=_TEXT,
        bindings={"type": "object", "additionalProperties": _BINDING}, parameters=_OBJECT,
    ),
    "ResultSet": _shape({"data": {"type": "array", "items": {"type": "array", "items": _TEXT_OR_NULL}}}),
    "InProgress": _shape({"code": _TEXT, "message": _TEXT, "statementHandle": _TEXT}),
    "Cancelled": _shape({"code": _TEXT, "message": _TEXT, "statementHandle": _TEXT}),
    "Login": _shape(
        {"data": _shape({}, LOGIN_NAME=_TEXT, PASSWORD=_TEXT, AUTHENTICATOR=_TEXT, TOKEN=_TEXT)}
    ),
    "Query": _shape(
        {"sqlText": _TEXT}, asyncExec=_FLAG, describeOnly=_FLAG,
        bindings={"type": ["object", "null"], "additionalProperties": _BINDING},
    ),
    "AbortRequest": _shape({}, requestId=_TEXT, sqlText=_TEXT),
    "RenewRequest": _shape({}, oldSessionToken=_TEXT, requestType=_TEXT),
    "Envelope": _shape(
        {"success": _FLAG, "code": _TEXT_OR_NULL, "message": _TEXT_OR_NULL, "data": {}}
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    :param method: upper case.
    :param path: with ``{name}`` for each part that varies.
    :param summary: one line.
    :param security: ``scoped``, ``original``, ``session``, ``upload``, ``file``, ``part``, or None.
    :param body: name of the shape of the request.
    :param answer: name of the shape of the answer.
    :param query: parameters and whether each is required.
    :param accepts: media type of the request.
    :param returns: media type of the answer.
    :param statuses: HTTP statuses of the answer, with the shapes of further ones.
    """

    method: str
    path: str
    summary: str
    security: str | None
    body: str | None
    answer: str
    query: Mapping[str, bool]
    accepts: str
    returns: str
    statuses: Mapping[int, str]

    def operation(self) -> dict[str, Any]:
        """Return the operation object of OpenAPI."""
        names = re.findall(r"\{(\w+)\}", self.path)
        parameters = [_parameter(name, "path", required=True) for name in names]
        parameters += [
            _parameter(name, "query", required=is_required) for name, is_required in self.query.items()
        ]
        responses = {"200": _content(self.returns, self.answer)}
        responses |= {str(status): _content(_JSON, name) for status, name in self.statuses.items()}
        described: dict[str, Any] = {
            "operationId": re.sub(r"\W+", "_", f"{self.method.lower()} {self.path}").strip("_"),
            "summary": self.summary,
            "parameters": parameters,
            "responses": responses | {"default": _content(_JSON, "Error")},
            "security": [{self.security: []}] if self.security else [],
        }
        if self.body is not None:
            described["requestBody"] = {"content": {self.accepts: {"schema": _reference(self.body)}}}
        return described


def _route(
    line: str, summary: str, security: str | None, body: str | None, answer: str,
    query: Mapping[str, bool] | None = None, accepts: str = _JSON, returns: str = _JSON, **statuses: str,
) -> Route:  # fmt: skip
    method, _, path = line.partition(" ")
    more = {int(status.removeprefix("on_")): name for status, name in statuses.items()}
    return Route(method, path, summary, security, body, answer, query or {}, accepts, returns, more)


_PLAIN, _OCTETS = "text/plain", "application/octet-stream"
# The token in a signed URL, instead of the header.
_SIGNED = {"token": False}
ROUTES: tuple[Route, ...] = (
    _route("GET /health", "Whether the service answers", None, None, "Health"),
    _route("GET /openapi.json", "This description", None, None, "Nothing"),
    _route("GET /v2/streaming/hostname", "Ingest host", "original", None, "Text", returns=_PLAIN),
    _route("POST /oauth/token", "Exchange a credential for a scoped token", "original", "Exchange", "Text",
           accepts=_FORM, returns=_PLAIN),
    _route("POST /oauth/token-request", "OAuth access token", None, "TokenRequest", "AccessToken",
           accepts=_FORM),
    _route("POST /telemetry/send/sessionless", "Telemetry of SDKs; thrown away", None, "Nothing",
           "Envelope"),
    _route("POST /telemetry/send", "Telemetry of connectors; thrown away", None, "Nothing", "Envelope"),
    _route(f"POST {_PIPE}:pipe-info", "Upload location and key", "scoped", "PipeInfoRequest", "PipeInfo"),
    _route(f"POST {_PIPE}:bulk-channel-status", "Status of channels", "scoped", "StatusRequest",
           "Statuses"),
    _route(f"PUT {_PIPE}/channels/{{channel}}", "Open a channel", "scoped", "OpenRequest", "Opened"),
    _route(f"DELETE {_PIPE}/channels/{{channel}}", "Drop a channel", "scoped", "DropRequest", "Dropped"),
    _route(f"POST {_DATA}{_CHANNEL}/rows", "Append rows", "scoped", "Rows", "Appended",
           {"continuationToken": False, **_ATTEMPT, **_TOKENS}, accepts=_LINES),
    _route(f"POST {_DATA}{_CHANNEL}/filebuffer", "Append a part of an uploaded file", "scoped", "Fragments",
           "Appended", {"continuationToken": False, **_ATTEMPT}),
    _route(f"POST {_DATA}/tables/{{table}}/rows", "Append rows to a table, unordered", "scoped", "Rows",
           "Appended", _ATTEMPT, accepts=_LINES),
    _route("PUT /snowpipe-local-stage/{prefix}/{name}", "Upload a file of the SDK's file mode", "upload",
           "File", "Text", accepts=_OCTETS, returns="application/xml"),
    _route(f"POST {_FILE_PIPE}/insertFiles", "Queue staged files in a pipe", "original", "Files", "Queued",
           {"requestId": False}),
    _route(f"GET {_FILE_PIPE}/insertReport", "Latest loads of a pipe", "original", None, "Loads",
           {"requestId": False, "beginMark": False}),
    _route(f"GET {_FILE_PIPE}/loadHistoryScan", "Loads of a pipe in a range of time", "original", None,
           "Loads", {"requestId": False, "startTimeInclusive": True, "endTimeExclusive": False}),
    _route("POST /v1/notifications/s3", "Events of a bucket, for pipes with AUTO_INGEST", "original",
           "BucketEvents", "Queued", {"requestId": False}),
    _route(f"PUT {_FILE}", "Upload a file to a stage", "file", "File", "Stored", _SIGNED,
           accepts=_OCTETS),
    _route(f"GET {_FILE}", "Download a file of a stage", "file", None, "File", _SIGNED,
           returns=_OCTETS),
    _route(f"HEAD {_FILE}", "Size and ETag of a file of a stage", "file", None, "File", _SIGNED,
           returns=_OCTETS),
    _route("GET /local/status", "Databases, pipes and channels, for the terminal", "original", None,
           "Nothing"),
    _route("POST /api/v2/statements", "Submit statements", "original", "Submit", "ResultSet",
           {"requestId": False, "async": False, "nullable": False}, on_202="InProgress"),
    _route("GET /api/v2/statements/{handle}", "Result of a statement", "original", None, "ResultSet",
           {"partition": False, "nullable": False}, on_202="InProgress"),
    _route("POST /api/v2/statements/{handle}/cancel", "Cancel a statement", "original", "Nothing",
           "Cancelled"),
    _route("POST /session/v1/login-request", "Log in", None, "Login", "Envelope", {"databaseName": False,
           "schemaName": False, "warehouse": False, "roleName": False}),
    _route("POST /session/token-request", "Renew a session's tokens", "session", "RenewRequest",
           "Envelope"),
    _route("POST /session/heartbeat", "Keep a session", "session", "Nothing", "Envelope"),
    _route("POST /session", "Log out", "session", "Nothing", "Envelope", {"delete": True}),
    _route("POST /queries/v1/query-request", "Run a statement", "session", "Query", "Envelope",
           {"requestId": False}),
    _route("POST /queries/v1/abort-request", "Cancel a request", "session", "AbortRequest", "Envelope"),
    _route("POST /queries/{query_id}/abort-request", "Cancel a statement", "session", "Nothing",
           "Envelope"),
    _route("GET /queries/{query_id}/result", "Result of a statement", "session", None, "Envelope"),
    _route("GET /queries/{query_id}/chunks/{number}", "Part of a large result", "part", None, "File",
           returns="application/octet-stream"),
    _route("GET /monitoring/queries/{query_id}", "State of a statement", "session", None, "Envelope"),
)  # fmt: skip

_SECURITY = {
    "scoped": {"type": "http", "scheme": "bearer", "description": "scoped token of /oauth/token"},
    "original": {"type": "http", "scheme": "bearer", "description": "key-pair JWT, PAT or access token"},
    "session": {"type": "apiKey", "in": "header", "name": "Authorization",
                "description": 'Snowflake Token="..", the token of the login'},
    "part": {"type": "apiKey", "in": "header", "name": "x-snowpipe-result-key",
             "description": "key in the answer to the statement"},
    "file": {"type": "http", "scheme": "bearer", "description": "token in the answer to PUT or GET"},
    "upload": {"type": "apiKey", "in": "header", "name": "Authorization",
               "description": "AWS Signature 4 with the key of pipe-info"},
}  # fmt: skip


def document() -> dict[str, Any]:
    """Return the whole description."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = route.operation()
    return {
        "openapi": "3.1.0",
        "info": {"title": "Local Snowpipe service", "version": "1"},
        "paths": paths,
        "components": {"schemas": SCHEMAS, "securitySchemes": _SECURITY},
    }


def _parameter(name: str, position: str, *, required: bool) -> dict[str, Any]:
    return {"name": name, "in": position, "required": required, "schema": _TEXT}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _content(media_type: str, name: str) -> dict[str, Any]:
    return {"description": name, "content": {media_type: {"schema": _reference(name)}}}


def written() -> str:
    """Return the description as its file has it: a line for each path and each shape."""
    described = document()
    parts = {"paths": described.pop("paths"), "schemas": described["components"].pop("schemas")}
    lines = {
        name: ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in part.items())
        for name, part in parts.items()
    }
    return (
        f'{{\n"openapi": {json.dumps(described["openapi"])},\n"info": {json.dumps(described["info"])},\n'
        f'"paths": {{\n{lines["paths"]}\n}},\n"components": {{\n"schemas": {{\n{lines["schemas"]}\n}},\n'
        f'"securitySchemes": {json.dumps(_SECURITY)}\n}}\n}}\n'
    )


if __name__ == "__main__":
    FILE.write_text(written())
