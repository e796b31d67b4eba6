"""The wheel in a new virtual environment, with whatever versions the index has today: rows reach a table.

It takes minutes, and fails when somebody else has released something. So it is for every night, and for the
commit that changes ``pyproject.toml``, the only one that changes what is resolved.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_FORCED = "SNOWPIPE_FRESH_INSTALL"
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

_TOOLS = """bash sh env dirname basename uname cat ls ps rm kill sleep tail head grep sed tr readlink nice
nohup hostname id git"""


def _reason_to_skip() -> str | None:
    if os.environ.get(_FORCED):
        return None
    asked = ["git", "diff", "--quiet", "HEAD~1", "--", "pyproject.toml"]
    if subprocess.run(asked, cwd=_ROOT, capture_output=True, check=False).returncode == 1:
        return None
    return f"pyproject.toml is that of the commit before; make nightly runs it, {_FORCED}=1 forces it"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this folder; skips where no index answers."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    reached = _ran([*pip, "download", "--no-deps", "--dest", str(folder / "index"), "hatchling"])
    if reached.returncode:
        pytest.skip(f"no package index answers: {reached.stderr.strip()[-300:]}")
    built = _ran([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(_ROOT)])
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.skipif(_reason_to_skip() is not None, reason=str(_reason_to_skip()))
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("version", "installer"), [("3.11", "pip"), ("3.12", "uv"), ("3.13", "uv")])
def test_fresh_install_without_a_lock_streams_rows(
    wheel: Path, tmp_path: Path, version: str, installer: str
) -> None:
    environment = tmp_path / "venv"
    if not any(
        _ran([one, "-m", "venv", "--clear", str(environment)]).returncode == 0 for one in _pythons(version)
    ):
        pytest.skip(f"no Python {version} on this machine makes a virtual environment")
    uv = Path(sys.executable).parent / "uv"
    install = (
        [str(uv), "pip", "install", "--quiet", "--python", str(environment / "bin" / "python")]
        if installer == "uv"
        else [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    )
    installed = _ran([*install, "apache-airflow", f"{wheel}[spark,local]"])
    assert installed.returncode == 0, installed.stderr[-3000:]

    _write_source(tmp_path / "source", tmp_path / "dags")
    done = _ran(["bash", "-euo", "pipefail", "-c", _STEPS], tmp_path, _without_java(tmp_path, environment))

    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.splitlines()[-1] == f"{ROWS},{ROWS},{ROWS - 1}"


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


def _without_java(folder: Path, environment: Path) -> dict[str, str]:
    """A user's shell on a machine without Java: the runtime is the wheel's."""
    tools = folder / "tools"
    tools.mkdir()
    for name in _TOOLS.split():
        found = shutil.which(name)
        if found is not None:
            (tools / name).symlink_to(found)
    kept = {name: value for name, value in os.environ.items() if name in ("LANG", "LC_ALL", "TMPDIR", "TZ")}
    return kept | {
        "PATH": f"{environment / 'bin'}:{tools}",
        "HOME": str(folder),
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
    }


def _ran(
    command: list[str], folder: Path = _ROOT, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    # Where the project's own sources are on the path, the wheel would not be what is tried.
    env = {name: value for name, value in (env or os.environ).items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=1200, check=False
    )
