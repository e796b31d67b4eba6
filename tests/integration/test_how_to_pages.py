"""The how-to pages about the local service: every snippet is run as it is printed."""

from __future__ import annotations

import os
import re
import string
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_snowpipe.spark.sources.kafka.spec import connector_prefix
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


@pytest.fixture(scope="module")
def folder(local_service: LocalService, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with the service's data directory in it."""
    folder = tmp_path_factory.mktemp("user")
    (folder / ".local").symlink_to(local_service.data_dir)
    return folder


def _command(snippet: Snippet, python: str) -> list[str]:
    if snippet.language == "sh":
        return ["bash", "-euo", "pipefail", "-c", snippet.text]
    return [python, "-c", snippet.text]


@pytest.mark.parametrize(
    "snippet",
    [one for one in _snippets("point-clients.md") if one.language in ("sh", "python")],
    ids=lambda snippet: f"{snippet.language}-{snippet.number}",
)
def test_a_client_reaches_the_service_as_documented(
    local_service: LocalService, folder: Path, snippet: Snippet
) -> None:
    printed = _run(_command(snippet, sys.executable), folder, _environment(local_service))
    if snippet.prints is not None:
        # Airflow may log before what the snippet prints.
        assert printed.rstrip("\n").endswith(snippet.prints.rstrip("\n"))


def test_settings_in_the_style_of_the_kafka_connector_open_its_channel(
    local_service: LocalService, folder: Path
) -> None:
    (snippet,) = [one for one in _snippets("point-clients.md") if one.language == "properties"]
    filled = string.Template(snippet.text).substitute(local_service.env)
    settings = dict(line.split("=", 1) for line in filled.splitlines())
    table = dict(pair.split(":") for pair in settings["snowflake.topic2table.map"].split(","))["events"]
    script = f"""
        from snowflake.ingest.streaming import StreamingIngestClient
        settings = {settings!r}
        pem = open(settings["snowflake.private.key"]).read().splitlines()
        client = StreamingIngestClient(
            "kafka", settings["snowflake.database.name"], settings["snowflake.schema.name"],
            '"{table}-STREAMING"',
            properties={{
                "account": "LOCAL", "user": settings["snowflake.user.name"],
                "url": settings["snowflake.url.name"],
                "role": settings["snowflake.role.name"], "private_key": "".join(pem[1:-1]),
                "mgmt_retry_total_backoff_seconds": "10",
            }},
        )
        channel, _ = client.open_channel("{connector_prefix("docs")}_" + settings["topics"] + "_0")
        channel.append_row({{"ID": 4, "NAME": "kafka"}}, offset_token="0")
        channel.wait_for_commit(lambda token: token == "0", timeout_seconds=60)
        client.close()
    """
    local_service.sql("CREATE TABLE IF NOT EXISTS events (id INT, name VARCHAR)")
    _run([sys.executable, "-c", textwrap.dedent(script)], folder, _environment(local_service))
    found = local_service.sql("SHOW CHANNELS LIKE 'DOCS_events_0'")
    assert [(channel["name"], channel["offset_token"]) for channel in found] == [("DOCS_events_0", "0")]


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
    (dag,) = [one for one in snippets if one.language == "python"]
    (user_folder / "dags").mkdir()
    (user_folder / "dags" / "readings.py").write_text(dag.text)
    shell = "\n".join(one.text for one in snippets if one.language == "sh")
    # The pids are kept for the fixture; the page itself is run as it is.
    kept = shell.replace("service=$!", 'service=$!; echo "$service" > "service-$service.pid"')
    # Without files for their output, the services would hold the pipes of this process open.
    kept = re.sub(r"(snowpipe-local serve [^&\n]*)&", r"\1>> service.log 2>&1 &", kept)
    printed = _run(["bash", "-euo", "pipefail", "-c", kept], user_folder, _environment(None), seconds=540)
    expected = "".join(one.prints for one in snippets if one.prints is not None)
    lines = [line for line in printed.splitlines() if line in expected.splitlines()]
    assert "\n".join(lines) == expected.rstrip("\n")
