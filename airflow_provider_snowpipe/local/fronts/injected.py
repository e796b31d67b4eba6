"""Answers that a test asked for by ``--faults``, and the names of the calls that they replace."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_snowpipe.local.errors import Refusal
from airflow_provider_snowpipe.local.faults import Faults
from airflow_provider_snowpipe.local.fronts.http import Request, Response

_CODES = {
    "401": "AUTHORIZATION_FAILED",
    "403": "FORBIDDEN",
    "408": "REQUEST_TIMEOUT",
    "409": "ERR_CHANNEL_MUST_BE_REOPENED",
    "410": "PIPE_FAILED_OVER",
    "429": "TOO_MANY_REQUESTS",
    "500": "INTERNAL_SERVER_ERROR",
    "503": "SERVICE_UNAVAILABLE",
}


_PIPE_CALLS = {
    "insertFiles": "insert-files",
    "insertReport": "insert-report",
    "loadHistoryScan": "history-scan",
}


def answer(faults: Faults, request: Request) -> Response | None:
    """Return the answer that a fault puts in place of the real one, after the delay it asks for, or None."""
    call = _call(request)
    return None if call is None else answer_to(faults, call)


def answer_to(faults: Faults, call: str) -> Response | None:
    """The same for a call whose kind its front knows."""
    faults.hold(call)
    asked = faults.next_answer(call)
    if asked is None:
        return None
    status, _, retry_after = asked.partition("@")
    if status == "404html":
        return Response(404, b"<html><body>404 Not Found</body></html>", "text/html")
    refused = Response.of_refusal(Refusal(int(status), _CODES[status], f"fault answer-{call}={asked}"))
    return replace(refused, headers=((b"retry-after", retry_after.encode()),)) if retry_after else refused


def _call(request: Request) -> str | None:
    segments = request.segments
    if segments == ("v2", "streaming", "hostname"):
        return "hostname"
    if segments == ("oauth", "token"):
        return "token"
    last = segments[-1]
    if segments[:3] == ("v2", "streaming", "data") and last in ("rows", "filebuffer"):
        return "append"
    if segments[:3] == ("v1", "data", "pipes"):
        return _PIPE_CALLS.get(last)
    if segments[:2] != ("v2", "streaming"):
        return None
    if last.endswith(":pipe-info"):
        return "pipe-info"
    if last.endswith(":bulk-channel-status"):
        return "status"
    if len(segments) == 10 and segments[8] == "channels":
        return {"PUT": "open", "DELETE": "drop"}.get(request.method)
    return None
