"""Bodies that name files: lists for insertFiles, and events of S3."""

from __future__ import annotations

import json
from urllib.parse import unquote_plus

from airflow_provider_snowpipe.local.errors import Refusal
from airflow_provider_snowpipe.local.fronts.encoding import decode_body
from airflow_provider_snowpipe.local.fronts.http import Request

WRONG = "390400"


def read_files(request: Request) -> list[tuple[str, int | None]]:
    """Return path and size or None of the files that a request names, as JSON or one a line.

    :raises Refusal: 400 for a body of another shape.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind == "text/plain":
        content = decode_body(request.body, request.headers.get("content-encoding", ""))
        try:
            return [(line.strip(), None) for line in content.decode().splitlines() if line.strip()]
        except UnicodeDecodeError as error:
            raise Refusal(400, WRONG, "the list of files is not UTF-8") from error
    files = request.json().get("files")
    if not isinstance(files, list):
        raise Refusal(400, WRONG, 'the body must be {"files": [{"path": "..", "size": 1}]}')
    found: list[tuple[str, int | None]] = []
    for entry in files:
        path = entry.get("path") if isinstance(entry, dict) else None
        size = entry.get("size") if isinstance(entry, dict) else None
        if not isinstance(path, str) or not (size is None or _is_size(size)):
            raise Refusal(400, WRONG, 'each file needs a "path", and a "size" in bytes or none')
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise Refusal(400, WRONG, "a path holds half of a surrogate pair") from error
        found.append((path, size))
    return found


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def created_objects(request: Request) -> list[tuple[str, str, int | None]]:
    """Return bucket, key and size of the objects that a body of S3 events says were created.

    The body may also be the notification of SNS around it.

    :raises Refusal: 400 for a body of another shape.
    """
    body = request.json()
    if isinstance(body.get("Message"), str):
        try:
            body = json.loads(body["Message"])
        except ValueError as error:
            raise Refusal(400, WRONG, "Message of the notification is not JSON") from error
    records = body.get("Records") if isinstance(body, dict) else None
    if not isinstance(records, list):
        raise Refusal(400, WRONG, 'the body must be an S3 event: {"Records": [..]}')
    found: list[tuple[str, str, int | None]] = []
    for record in records:
        try:
            if "ObjectCreated" not in str(record["eventName"]):
                continue
            bucket, stored = record["s3"]["bucket"]["name"], record["s3"]["object"]
            size = stored.get("size")
            found.append((str(bucket), unquote_plus(stored["key"]), size if _is_size(size) else None))
        except (KeyError, TypeError, AttributeError) as error:
            raise Refusal(400, WRONG, "a record needs eventName, s3.bucket.name and s3.object.key") from error
    return found
