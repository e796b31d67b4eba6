"""README and pages of the service: what they show is run as it is printed; both connectors of today."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from snowpipe_local.cli import parser
from snowpipe_local.testing import LocalService
from tests.clients.packages import UnavailableError, connector_5_python

ROOT = Path(__file__).parents[2]
CLIENTS = "docs/point-clients.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """One block of a page; ``prints`` is the text block that follows it, or None."""

    number: int
    language: str
    text: str
    prints: str | None


def snippets(page: str) -> list[Snippet]:
    blocks = _BLOCK.findall((ROOT / page).read_text())
    followed = zip(blocks, [*blocks[1:], ("", "")], strict=True)
    return [
        Snippet(number, language, text, then[1] if then[0] == "text" else None)
        for number, ((language, text), then) in enumerate(followed)
        if language != "text"
    ]


def run(command: list[str], folder: Path, service: LocalService | None = None) -> str:
    """Run a command in a shell of a user: our command on the path, none of the proxies of this machine."""
    base = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    base |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "SS_LOG_LEVEL": "warn"}
    env = service.process_env(base) if service else base
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(local_service: LocalService, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with the service's data directory in it; the page's table is there."""
    local_service.sql("CREATE TABLE events (id INT, name VARCHAR)")
    folder = tmp_path_factory.mktemp("user")
    (folder / ".local").symlink_to(local_service.data_dir)
    return folder


@pytest.mark.parametrize(
    "snippet",
    [one for one in snippets(CLIENTS) if one.language in ("sh", "python")],
    ids=lambda snippet: f"{snippet.language}-{snippet.number}",
)
def test_a_client_reaches_the_service_as_documented(
    local_service: LocalService, folder: Path, snippet: Snippet
) -> None:
    shell = ["bash", "-euo", "pipefail", "-c", snippet.text]
    command = shell if snippet.language == "sh" else [sys.executable, "-c", snippet.text]
    printed = run(command, folder, local_service)
    if snippet.prints is not None:
        assert printed.rstrip("\n").endswith(snippet.prints.rstrip("\n"))


@pytest.mark.parametrize("generation", ["4", "5"])
def test_a_connector_of_either_generation_works_unmodified(
    local_service: LocalService, folder: Path, generation: str
) -> None:
    python = Path(sys.executable)
    if generation == "5":
        try:
            python = connector_5_python()
        except UnavailableError as error:
            pytest.skip(str(error))
    printed = run([str(python), str(ROOT / "tests/clients/connector_scenario.py")], folder, local_service)
    assert printed.strip().startswith(f"{generation}.")


def test_the_readme_leads_from_one_line_to_rows(tmp_path: Path) -> None:
    shown = snippets("README.md")
    script = "\n".join(
        one.text if one.language == "sh" else f"python - <<'PYTHON'\n{one.text}PYTHON"
        for one in shown
        if one.language in ("sh", "python")
    )
    # Without a file for its output, the service would hold the pipes of this process open.
    script = re.sub(r"(snowpipe-local serve [^&\n]*)&", r"\1> service.log 2>&1 &", script)
    ended = "trap 'kill \"$service\" 2> /dev/null || true' EXIT\n"
    printed = run(["bash", "-euo", "pipefail", "-c", ended + script], tmp_path)
    expected = "".join(one.prints for one in shown if one.prints is not None)
    lines = [line for line in printed.splitlines() if line in expected.splitlines()]
    assert lines == expected.splitlines()


def test_a_test_of_a_user_passes_as_documented(tmp_path: Path) -> None:
    shown = [one.text for one in snippets("docs/testing.md") if one.language == "python"]
    texts = [one for one in shown if "def test_" in one]
    assert texts
    (tmp_path / "test_orders.py").write_text("\n".join(texts))
    run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_orders.py"], tmp_path)


def test_the_reference_has_every_option_of_every_command() -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    (commands,) = [one.choices for one in parser()._actions if one.choices]
    assert isinstance(commands, dict)
    assert [name for name in commands if f"snowpipe-local {name}" not in page] == []
    actions = [action for command in commands.values() for action in command._actions]
    options = {option for action in actions for option in action.option_strings} - {"-h", "--help"}
    assert len(options) > 10
    assert [option for option in sorted(options) if not re.search(rf"{option}\b", page)] == []
