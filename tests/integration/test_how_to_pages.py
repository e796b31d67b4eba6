"""The page about developing offline: its hooks are run as they are printed."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.local_service import LocalService

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "develop-offline.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """A block of Python, and the text block that follows it."""

    text: str
    prints: str


def _snippets() -> list[Snippet]:
    blocks = _BLOCK.findall(_PAGE.read_text())
    pairs = zip(blocks, [*blocks[1:], ("", "")], strict=True)
    return [Snippet(text, then) for (_, text), (kind, then) in pairs if "Hook(" in text and kind == "text"]


def test_the_page_has_hooks() -> None:
    assert len(_snippets()) == _PAGE.read_text().count("Hook(")


@pytest.mark.parametrize("snippet", _snippets())
def test_airflows_other_hooks_reach_the_service_as_documented(
    local_service: LocalService, tmp_path: Path, snippet: Snippet
) -> None:
    local_service.sql("CREATE OR REPLACE TABLE readings (station VARCHAR, celsius FLOAT)")
    local_service.sql("INSERT INTO readings VALUES ('S1', 20.5), ('S2', 21.0)")
    command, env = [sys.executable, "-c", snippet.text], local_service.process_env()
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    # Airflow may log before what the snippet prints.
    assert done.stdout.rstrip("\n").endswith(snippet.prints.rstrip("\n"))
