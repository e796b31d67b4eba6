"""The page about developing offline: every snippet is run as it is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.local_service import LocalService

_PAGES = Path(__file__).parents[2] / "docs" / "how-to"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """One block of a page; ``prints`` is the text block that follows it, or None."""

    page: str
    number: int
    language: str
    text: str
    prints: str | None


def _snippets(page: str) -> list[Snippet]:
    blocks = _BLOCK.findall((_PAGES / page).read_text())
    found: list[Snippet] = []
    for number, (language, text) in enumerate(blocks):
        follows = blocks[number + 1] if number + 1 < len(blocks) else ("", "")
        if language != "text":
            prints = follows[1] if follows[0] == "text" else None
            found.append(Snippet(page, number, language, text, prints))
    return found


def _environment(service: LocalService | None) -> dict[str, str]:
    """A shell of a user: our command on the path, none of the proxies of this machine."""
    base = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    base |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "SS_LOG_LEVEL": "warn"}
    return service.process_env(base) if service is not None else base


def _run(command: list[str], folder: Path, env: dict[str, str], seconds: float = 600) -> str:
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout


HOOKS = [one for one in _snippets("develop-offline.md") if "Hook(" in one.text]


@pytest.fixture(scope="module")
def readings(local_service: LocalService) -> None:
    """The page's table with the rows of its first batch."""
    local_service.sql("CREATE TABLE readings (station VARCHAR, celsius FLOAT)")
    local_service.sql("INSERT INTO readings VALUES ('S1', 20.5), ('S2', 21.0)")


@pytest.mark.usefixtures("readings")
@pytest.mark.parametrize("snippet", HOOKS, ids=[str(one.number) for one in HOOKS])
def test_airflows_other_hooks_reach_the_service_as_documented(
    local_service: LocalService, tmp_path: Path, snippet: Snippet
) -> None:
    printed = _run([sys.executable, "-c", snippet.text], tmp_path, _environment(local_service))
    assert snippet.prints is not None
    # Airflow may log before what the snippet prints.
    assert printed.rstrip("\n").endswith(snippet.prints.rstrip("\n"))


@pytest.fixture
def user_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose services end with the test, even when the page's own last line was not reached."""
    yield tmp_path
    for file in tmp_path.glob("service-*.pid"):
        subprocess.run(["kill", file.read_text().strip()], check=False, capture_output=True)


# An Airflow with a database of its own for one page; the page's parts run daily in the system tests.
@pytest.mark.nightly
@pytest.mark.airflow
def test_a_dag_is_developed_offline_as_documented(user_folder: Path) -> None:
    snippets = _snippets("develop-offline.md")
    (dag,) = [one for one in snippets if "with DAG(" in one.text]
    (user_folder / "dags").mkdir()
    (user_folder / "dags" / "readings.py").write_text(dag.text)
    shell = "\n".join(one.text for one in snippets if one.language == "sh")
    # The pids are kept for the fixture; the page itself is run as it is.
    kept = shell.replace("service=$!", 'service=$!; echo "$service" > "service-$service.pid"')
    # Without files for their output, the services would hold the pipes of this process open.
    kept = re.sub(r"(snowpipe-local serve [^&\n]*)&", r"\1>> service.log 2>&1 &", kept)
    printed = _run(["bash", "-euo", "pipefail", "-c", kept], user_folder, _environment(None), seconds=540)
    expected = "".join(one.prints for one in snippets if one.prints is not None and one not in HOOKS)
    lines = [line for line in printed.splitlines() if line in expected.splitlines()]
    assert "\n".join(lines) == expected.rstrip("\n")
