"""The wheels in a new virtual environment, with whatever versions the index has today: rows reach a table.

It takes minutes, and fails when somebody else has released something. So it is for every night, and for the
commit that changes a ``pyproject.toml``, the only one that changes what is resolved.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from demo.ports import reserved_port

_ROOT = Path(__file__).parents[2]
_QUICKSTART = (_ROOT / "docs" / "quickstart.md").read_text()
_FORCED = "SNOWPIPE_FRESH_INSTALL"
pytestmark = pytest.mark.nightly
ROWS = 1_000
_DAG = """
from airflow.sdk import DAG
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator

with DAG("fresh", schedule=None):
    SnowpipeStreamOperator(
        task_id="load", source={"path": SOURCE}, table="FRESH", database="LOCAL", schema="PUBLIC"
    )
"""
_STEPS = """
snowpipe-local serve --data-dir .local > service.log 2>&1 & service=$!
trap 'kill $service; wait $service || true' EXIT
until snowpipe-local env --data-dir .local > /dev/null 2>&1; do kill -0 $service; sleep 0.5; done
eval "$(snowpipe-local env --data-dir .local)"
snowpipe-local sql --data-dir .local "CREATE TABLE fresh (id INTEGER)" > /dev/null
airflow db migrate > airflow.log 2>&1
airflow dags test fresh >> airflow.log 2>&1 || { tail -60 airflow.log >&2; exit 1; }
snowpipe-local sql --data-dir .local --format csv "SELECT count(*), count(DISTINCT id), max(id) FROM fresh"
"""

_TOOLS = """bash sh env dirname basename uname cat cut ls mkdir ps pkill rm kill sleep tail head grep sed tr
readlink nice nohup hostname id git"""


def _reason_to_skip() -> str | None:
    if os.environ.get(_FORCED):
        return None
    asked = ["git", "diff", "--quiet", "HEAD~1", "--", "pyproject.toml", "snowpipe-local/pyproject.toml"]
    if subprocess.run(asked, cwd=_ROOT, capture_output=True, check=False).returncode == 1:
        return None
    return f"both pyproject.toml are those of the commit before; make nightly runs it, {_FORCED}=1 forces it"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of both distributions; skips where no index answers."""
    if built := os.environ.get("SNOWPIPE_WHEELS"):
        return Path(built)
    folder = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    reached = _ran([*pip, "download", "--no-deps", "--dest", str(folder / "index"), "hatchling"])
    if reached.returncode:
        pytest.skip(f"no package index answers: {reached.stderr.strip()[-300:]}")
    sources = (str(_ROOT), str(_ROOT / "snowpipe-local"))
    made = _ran([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), *sources])
    assert made.returncode == 0, made.stderr
    assert len(list(folder.glob("*.whl"))) == 2
    return folder


@pytest.mark.skipif(_reason_to_skip() is not None, reason=str(_reason_to_skip()))
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", ["3.12", "3.13"])  # the quickstart takes 3.11, and pip
def test_fresh_install_without_a_lock_streams_rows(wheels: Path, tmp_path: Path, version: str) -> None:
    environment = tmp_path / "venv"
    if not any(
        _ran([one, "-m", "venv", "--clear", str(environment)]).returncode == 0 for one in _pythons(version)
    ):
        pytest.skip(f"no Python {version} on this machine makes a virtual environment")
    uv = [str(Path(sys.executable).parent / "uv"), "pip", "install", "--quiet", "--python"]
    (provider,) = wheels.glob("airflow_provider_snowpipe-*.whl")
    packages = ["--find-links", str(wheels), "apache-airflow", f"{provider}[spark,local]"]
    installed = _ran([*uv, str(environment / "bin" / "python"), *packages])
    assert installed.returncode == 0, installed.stderr[-3000:]

    _write_source(tmp_path / "source", tmp_path / "dags")
    shell = _without_java(tmp_path, f"{environment / 'bin'}:") | {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
    }
    done = _ran(["bash", "-euo", "pipefail", "-c", _STEPS], tmp_path, shell)

    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.splitlines()[-1] == f"{ROWS},{ROWS},{ROWS - 1}"


@pytest.mark.nightly
@pytest.mark.skipif(not os.environ.get(_FORCED), reason=f"a stage of its own runs it, {_FORCED}=1 forces it")
@pytest.mark.timeout(1800)
def test_quickstart_leads_to_committed_rows_as_it_is_printed(
    wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = _without_java(tmp_path) | _index_with(wheels) | _busy_machine(tmp_path)
    (tmp_path / "tools" / "python3").symlink_to(_pythons("3.11")[0])
    (saved_as,) = re.findall(r"Save it as `(\S+\.py)`", _QUICKSTART)
    script, expected = "", ""
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", _QUICKSTART, re.MULTILINE | re.DOTALL):
        if language == "text":
            expected += text
            continue
        first = text.partition("\n")[0].replace("'", "")
        script += f"cat > {saved_as} <<'DAG'\n{text}DAG\n" if language == "python" else text
        script += f"echo \"$EPOCHREALTIME {language}: \"'{first}' >> ~/times\n"

    with _user_shell(script, tmp_path, shell) as user:
        printed, errors = user.communicate(timeout=1500)

    logs = [log.read_text()[-6000:] for log in sorted(tmp_path.glob("quickstart/*.log"))]
    with capsys.disabled():
        print(f"\nquickstart, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}:")
        print("\n".join(_seconds_of_blocks((tmp_path / "times").read_text())))
    assert user.returncode == 0, "\n".join([errors[-3000:], *logs])
    lines = [line for line in printed.splitlines() if line in expected.splitlines()]
    assert lines == expected.splitlines()


def _index_with(wheels: Path) -> dict[str, str]:
    """Pip's own settings and proxies of this machine, and the folder where it finds both wheels."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PIP_") or name.lower().endswith("_proxy")
    }
    return kept | {"PIP_FIND_LINKS": f"{wheels} {kept.get('PIP_FIND_LINKS', '')}".strip()}


def _busy_machine(folder: Path) -> dict[str, str]:
    """Others may have an Airflow here; after 5 s a scheduler gives up a lock of SQLite, a task its server."""
    port = reserved_port()
    return {
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(reserved_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(reserved_port()),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/quickstart/airflow/airflow.db?timeout=60",
    }


@contextmanager
def _user_shell(script: str, folder: Path, shell: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run lines in a shell, and end what they have left running."""
    begin = 'echo "$EPOCHREALTIME" > ~/times\n'
    user = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", begin + script],
        cwd=folder,
        env=shell,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield user
    finally:
        for pid in psutil.pids():
            with suppress(ProcessLookupError):
                if os.getsid(pid) == user.pid:
                    os.kill(pid, signal.SIGKILL)
        user.wait()


def _seconds_of_blocks(times: str) -> Iterator[str]:
    began, *ends = (line.partition(" ") for line in times.splitlines())
    last = first = float(began[0])
    for at, _, block in ends:
        yield f"{float(at) - last:7.1f} s  {block}"
        last = float(at)
    yield f"{last - first:7.1f} s  in all"


def _pythons(version: str) -> list[str]:
    """Programs that may be such a Python; some that pyenv puts on the path do not run."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), *map(str, pyenv.glob(f"versions/{version}.*/bin/python"))]
    return [one for one in found if one is not None]


def _write_source(source: Path, dags: Path) -> None:
    for partition in range(2):
        file = source / str(partition) / "1.ndjson"
        file.parent.mkdir(parents=True)
        file.write_text("".join(json.dumps({"ID": row}) + "\n" for row in range(partition, ROWS, 2)))
    dags.mkdir()
    (dags / "fresh.py").write_text(_DAG.replace("SOURCE", repr(str(source))))


def _without_java(folder: Path, path: str = "") -> dict[str, str]:
    """A user's shell on a machine without Java: the runtime is the wheel's."""
    tools = folder / "tools"
    tools.mkdir()
    for name in _TOOLS.split():
        found = shutil.which(name)
        if found is not None:
            (tools / name).symlink_to(found)
    kept = {name: value for name, value in os.environ.items() if name in ("LANG", "LC_ALL", "TMPDIR", "TZ")}
    return kept | {"PATH": f"{path}{tools}", "HOME": str(folder)}


def _ran(
    command: list[str], folder: Path = _ROOT, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    # Where the project's own sources are on the path, the wheel would not be what is tried.
    env = {name: value for name, value in (env or os.environ).items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=1200, check=False
    )
