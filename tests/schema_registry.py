"""A schema registry over HTTP with the two answers that readers need, as Confluent's API describes them."""

from __future__ import annotations

import base64
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


class RegistryService:
    """Serves schemas on a free port; with a user it requires basic authentication.

    :param user_info: ``user:password``, None for everybody
    """

    def __init__(self, user_info: str | None = None) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[tuple[str, int], int] = {}
        self.user_info = user_info
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service._answer(self)

            def log_message(self, *_: Any) -> None:
                """Keep the tests' output clean."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, number: int, schema: str, kind: str, *, serialized: str = "", **more: Any) -> None:
        """Register a schema."""
        self.schemas[number] = {"schema": schema, "schemaType": kind, "serialized": serialized, **more}

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        parts = url.path.strip("/").split("/")
        by_subject = parts[0] == "subjects"
        number = self.subjects.get((parts[1], int(parts[3])), 0) if by_subject else int(parts[2])
        expected = "Basic " + base64.b64encode((self.user_info or "").encode()).decode()
        if self.user_info and request.headers.get("Authorization") != expected:
            return self._send(request, 401, {"error_code": 40101, "message": "Unauthorized"})
        if number not in self.schemas:
            return self._send(request, 404, {"error_code": 40403, "message": "Schema not found"})
        found = dict(self.schemas[number])
        serialized = found.pop("serialized")
        if parse_qs(url.query).get("format") == ["serialized"]:
            found["schema"] = serialized
        if by_subject:
            found |= {"subject": parts[1], "version": int(parts[3]), "id": number}
        return self._send(request, 200, found)

    def _send(self, request: BaseHTTPRequestHandler, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
