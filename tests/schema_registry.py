"""A schema registry over HTTP with the two answers that readers need, as Confluent's API describes them."""

import json
from contextlib import ExitStack
from typing import Any, Self

from tests.http_server import Received, Reply, serving


class RegistryService:
    """Serves schemas on a free port; with a proof it requires that one as ``Authorization``."""

    def __init__(self, proof: str | None = None) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[tuple[str, int], int] = {}
        self._proof = proof
        self._running = ExitStack()
        self.url = f"http://127.0.0.1:{self._running.enter_context(serving(self._answer))}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def add(self, number: int, schema: str, kind: str, *, serialized: str = "", **more: Any) -> None:
        self.schemas[number] = {"schema": schema, "schemaType": kind, "serialized": serialized, **more}

    def _answer(self, request: Received) -> Reply:
        parts = request.path.strip("/").split("/")
        by_subject = parts[0] == "subjects"
        number = self.subjects.get((parts[1], int(parts[3])), 0) if by_subject else int(parts[2])
        if self._proof and request.headers.get("Authorization") != self._proof:
            return _reply(401, {"error_code": 40101, "message": "Unauthorized"})
        if number not in self.schemas:
            return _reply(404, {"error_code": 40403, "message": "Schema not found"})
        found = dict(self.schemas[number])
        serialized = found.pop("serialized")
        if request.query.get("format") == "serialized":
            found["schema"] = serialized
        if by_subject:
            found |= {"subject": parts[1], "version": int(parts[3]), "id": number}
        return _reply(200, found)


def _reply(status: int, answer: dict[str, Any]) -> Reply:
    return Reply(status, json.dumps(answer), {"Content-Type": "application/vnd.schemaregistry.v1+json"})
