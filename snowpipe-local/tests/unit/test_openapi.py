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


def _first_parts() -> set[str]:
    """Find the first parts of paths that ``server.py`` distinguishes, by text or by the name of a bucket."""
    found = {UPLOAD_BUCKET, FILES_BUCKET}
    for node in ast.walk(ast.parse(Path(server.__file__).read_text())):
        if isinstance(node, ast.match_case):
            for value in ast.walk(node.pattern):
                if isinstance(value, ast.Constant):
                    found.add(str(value.value))
    return found


def _described() -> dict[tuple[str, ...], described_routes.Route]:
    def shape(path: str) -> tuple[str, ...]:
        return tuple(re.sub(r".*\{\w+\}.*", _VARIES, part) for part in path.lstrip("/").split("/"))

    return {shape(route.path): route for route in described_routes.ROUTES}


def test_every_route_of_the_fronts_is_described():
    coded = set(_coded())
    assert ("v2", "streaming", "hostname") in coded
    described = set(_described())
    described.add(("v2", "streaming", "data", "databases", *(_VARIES, "schemas", _VARIES, "pipes", _VARIES,
                                                            "channels", _VARIES, _VARIES)))  # fmt: skip
    assert coded - described == set()


def test_every_first_part_that_the_server_knows_is_described():
    first = _first_parts()
    assert {"health", "api", "session"} < first
    assert first - {route.path.split("/")[1] for route in described_routes.ROUTES} == set()


def test_every_described_route_is_one_of_the_service():
    coded = {
        *_coded(), ("health",), ("openapi.json",), STATUS_PATH, (UPLOAD_BUCKET, _VARIES, _VARIES),
        (FILES_BUCKET, _VARIES, _VARIES),
    }  # fmt: skip
    data = (
        "v2", "streaming", "data", "databases", _VARIES, "schemas", _VARIES, "pipes", _VARIES, "channels",
        _VARIES,
    )  # fmt: skip
    coded |= {(*data, "rows"), (*data, "filebuffer")}
    assert set(_described()) - coded == set()


def test_the_description_is_json_with_one_operation_for_each_route():
    document = json.loads(json.dumps(described_routes.document()))
    assert document["openapi"] == "3.1.0"
    operations = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(operations) == len(set(operations)) == len(described_routes.ROUTES)


def test_the_service_serves_what_is_described():
    served = described_routes.FILE.read_text()
    assert json.loads(served) == described_routes.document()
    assert served == described_routes.written(), "run: python -m tests.described_routes"


def test_every_shape_is_a_json_schema():
    for name in sorted(described_routes.SCHEMAS):
        jsonschema.Draft202012Validator.check_schema(described_routes.SCHEMAS[name])


def test_every_shape_is_used():
    used = {"Error"}
    for route in described_routes.ROUTES:
        used |= {name for name in (route.body, route.answer, *route.statuses.values()) if name}
    assert used == set(described_routes.SCHEMAS)
