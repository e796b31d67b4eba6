"""The routes of the OpenAPI description that the local service serves at ``/openapi.json``.

The file has a line for each path and for each shape of a body. After a change, ``python -m
tests.described_routes`` brings it back to that form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "snowpipe_local" / "openapi.json"


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    :param method: upper case.
    :param path: with ``{name}`` for each part that varies.
    :param security: ``scoped``, ``original``, ``session``, ``upload``, ``file``, ``part``, or None.
    :param body: name of the shape of the request.
    :param answer: name of the shape of the answer.
    :param query: names of the parameters.
    :param statuses: shapes of answers with another status than 200.
    """

    method: str
    path: str
    security: str | None
    body: str | None
    answer: str
    query: tuple[str, ...]
    statuses: Mapping[int, str]

    @classmethod
    def read(cls, method: str, path: str, operation: dict[str, Any]) -> Route:
        """Read an operation object of OpenAPI."""
        shapes = {status: _shape(answer) for status, answer in operation["responses"].items()}
        security = [name for scheme in operation["security"] for name in scheme]
        query = tuple(one["name"] for one in operation["parameters"] if one["in"] == "query")
        body = operation.get("requestBody")
        further = {int(status): name for status, name in shapes.items() if status not in ("200", "default")}
        return cls(
            method.upper(), path, security[0] if security else None, _shape(body) if body else None,
            shapes["200"], query, further,
        )  # fmt: skip


def _shape(described: dict[str, Any]) -> str:
    (media,) = described["content"].values()
    return str(media["schema"]["$ref"]).rpartition("/")[2]


def document() -> dict[str, Any]:
    """Return the whole description."""
    return dict(json.loads(FILE.read_text()))


def written() -> str:
    """Return the description as its file has it."""
    described = document()
    components = described.pop("components")
    parts = {"paths": described.pop("paths"), "schemas": components.pop("schemas")}
    lines = {
        name: ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in part.items())
        for name, part in parts.items()
    }
    first = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in described.items())
    return (
        f'{{\n{first}"paths": {{\n{lines["paths"]}\n}},\n'
        f'"components": {{\n"schemas": {{\n{lines["schemas"]}\n}},\n'
        f'"securitySchemes": {json.dumps(components["securitySchemes"])}\n}}\n}}\n'
    )


SCHEMAS: dict[str, dict[str, Any]] = document()["components"]["schemas"]
ROUTES = tuple(
    Route.read(method, path, operation)
    for path, operations in document()["paths"].items()
    for method, operation in operations.items()
)

if __name__ == "__main__":
    FILE.write_text(written())
