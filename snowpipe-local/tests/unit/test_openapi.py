from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import jsonschema
from snowpipe_local import server
from snowpipe_local.environment import STATUS_PATH
from snowpipe_local.fronts.stage_files import BUCKET as FILES_BUCKET
from snowpipe_local.fronts.stage_files import UPLOAD_BUCKET

from tests import described_routes

_FRONTS = sorted((Path(server.__file__).parent / "fronts").glob("*.py"))
# A part of a path in the code: its own text, or one that varies.
_VARIES = "{}"


def _parts(pattern: ast.pattern) -> list[list[str]]:
    """Return the path parts that a pattern of a ``match`` accepts, one list for each alternative."""
    if not isinstance(pattern, ast.MatchSequence):
        return []
    found: list[list[str]] = [[]]
    for part in pattern.patterns:
        choices = [part] if not isinstance(part, ast.MatchOr) else part.patterns
        words: list[str | None] = []
        for choice in choices:
            if isinstance(choice, ast.MatchValue) and isinstance(choice.value, ast.Constant):
                words.append(str(choice.value.value))
            elif isinstance(choice, ast.MatchAs):
                words.append(_VARIES)
            elif isinstance(choice, ast.MatchStar):
                words.append(None)
            else:
                return []
        found = [[*head, *([word] if word else [])] for head in found for word in words]
    return found


def _coded() -> Iterator[tuple[str, ...]]:
    """Find every path that a front matches: ``case "GET", ("v2", ..)`` or ``case ("queries", ..)``."""
    for file in _FRONTS:
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.match_case):
                continue
            pattern = node.pattern
            if isinstance(pattern, ast.MatchSequence) and len(pattern.patterns) == 2:
                inner = pattern.patterns[1]
                pattern = inner if isinstance(inner, ast.MatchSequence) else pattern
            ends_open = isinstance(pattern, ast.MatchSequence) and isinstance(
                pattern.patterns[-1], ast.MatchStar
            )
            for parts in _parts(pattern):
                # A pattern with an open end only leads to another match statement.
                if not ends_open and parts and parts[0] != _VARIES:
                    yield tuple(parts)


def _described() -> dict[tuple[str, ...], described_routes.Route]:
    def shape(path: str) -> tuple[str, ...]:
        return tuple(re.sub(r".*\{\w+\}.*", _VARIES, part) for part in path.lstrip("/").split("/"))

    return {shape(route.path): route for route in described_routes.ROUTES}


def test_every_described_route_is_one_of_the_service_and_every_one_is_described():
    coded, described = set(_coded()), set(_described())
    assert ("v2", "streaming", "hostname") in coded
    channel = ("v2", "streaming", "data", *_names("databases", "schemas", "pipes", "channels"))
    assert coded - described == {(*channel, _VARIES)}
    others = {
        ("health",), ("openapi.json",), STATUS_PATH, (UPLOAD_BUCKET, _VARIES, _VARIES),
        (FILES_BUCKET, _VARIES, _VARIES), (*channel, "rows"), (*channel, "filebuffer"),
    }  # fmt: skip
    assert described - coded - others == set()


def _names(*words: str) -> tuple[str, ...]:
    return tuple(part for word in words for part in (word, _VARIES))


def test_the_service_serves_what_is_described_with_one_operation_for_each_route():
    document = described_routes.document()
    operations = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(operations) == len(set(operations)) == len(described_routes.ROUTES)
    served = described_routes.FILE.read_text()
    assert json.loads(served) == document
    assert served == described_routes.written(), "run: python -m tests.described_routes"
    used = {"Error"}
    for route in described_routes.ROUTES:
        used |= {name for name in (route.body, route.answer, *route.statuses.values()) if name}
    assert used == set(described_routes.SCHEMAS)
    for schema in described_routes.SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
