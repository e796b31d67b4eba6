"""The wheels in a new environment, as the quickstart makes it, with the versions that the index has today.

It takes minutes, and fails when somebody else has released something: so it is for every night and a release.
"""

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
_TOOLS = """bash sh env dirname basename uname cat cut ls mkdir ps pkill rm kill sleep tail head grep sed tr
readlink nice nohup hostname id git"""


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


@pytest.mark.skipif(not os.environ.get(_FORCED), reason=f"a stage of its own runs it, {_FORCED}=1 forces it")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_quickstart_leads_to_committed_rows_as_it_is_printed(
    wheels: Path, tmp_path: Path, version: str
) -> None:
    pythons = (one for one in _pythons(version) if _ran([one, "-c", "import ensurepip"]).returncode == 0)
    python = next(pythons, None)
    if python is None:
        pytest.skip(f"no Python {version} on this machine makes a virtual environment")
    shell = _without_java(tmp_path) | _index_with(wheels) | _busy_machine(tmp_path)
    (tmp_path / "tools" / "python3").symlink_to(python)
    (saved_as,) = re.findall(r"Save it as `(\S+\.py)`", _QUICKSTART)
    script, expected = "", ""
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", _QUICKSTART, re.MULTILINE | re.DOTALL):
        if language == "text":
            expected += text
        else:
            script += f"cat > {saved_as} <<'DAG'\n{text}DAG\n" if language == "python" else text

    with _user_shell(script, tmp_path, shell) as user:
        printed, errors = user.communicate(timeout=1500)

    logs = [log.read_text()[-6000:] for log in sorted(tmp_path.glob("quickstart/*.log"))]
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
    user = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
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


def _pythons(version: str) -> list[str]:
    """Programs that may be such a Python; some that pyenv puts on the path do not run."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), *map(str, pyenv.glob(f"versions/{version}.*/bin/python"))]
    return [one for one in found if one is not None]


def _without_java(folder: Path) -> dict[str, str]:
    """A user's shell on a machine without Java: the runtime is the wheel's."""
    tools = folder / "tools"
    tools.mkdir()
    for name in _TOOLS.split():
        found = shutil.which(name)
        if found is not None:
            (tools / name).symlink_to(found)
    kept = {name: value for name, value in os.environ.items() if name in ("LANG", "LC_ALL", "TMPDIR", "TZ")}
    return kept | {"PATH": str(tools), "HOME": str(folder)}


def _ran(command: list[str]) -> subprocess.CompletedProcess[str]:
    # Where the project's own sources are on the path, the wheel would not be what is tried.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=_ROOT, env=env, capture_output=True, text=True, timeout=1200, check=False
    )
