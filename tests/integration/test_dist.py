"""The wheel and the sdist as ``make dist`` builds them: what is in them, and what a package index shows."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = "airflow_provider_snowpipe"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both, built and checked by twine; skips where no index answers."""
    folder = tmp_path_factory.mktemp("dist")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
    if subprocess.run([*pip, "--dest", str(folder), "hatchling"], capture_output=True).returncode:
        pytest.skip("no package index answers")
    done = subprocess.run(
        [ROOT / "scripts" / "dist.sh", str(folder / "dist")], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("PASSED") == 2
    return folder / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> zipfile.ZipFile:
    (found,) = dist.glob("*.whl")
    return zipfile.ZipFile(found)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def test_each_example_dag_is_a_module_of_the_wheel(wheel: zipfile.ZipFile) -> None:
    folder = f"{NAME}/example_dags/"
    shipped = {name: wheel.read(name) for name in wheel.namelist() if name.startswith(folder)}

    assert shipped == {f"{folder}{dag.name}": dag.read_bytes() for dag in (ROOT / "dags").glob("*.py")}
    assert len(shipped) > 10


def test_the_wheel_is_typed_and_names_its_licences(wheel: zipfile.ZipFile) -> None:
    names = {name.rpartition("/")[2] for name in wheel.namelist()}

    assert {"py.typed", "LICENSE", "NOTICE"} <= names


def test_the_wheel_has_the_data_of_the_local_service(wheel: zipfile.ZipFile) -> None:
    room = "snowpipe-local/snowpipe_local"
    names = ("functions.txt", "parameters.csv", "engine_errors.tsv", "history.sql")
    tables = {f"{room}/sql/{name}" for name in names}
    assert {f"{room}/openapi.json", f"{room}/engine/macros.sql", *tables} <= set(wheel.namelist())


def test_the_page_of_an_index_has_no_relative_link(metadata: Message) -> None:
    page = str(metadata.get_payload())

    assert "](https://" in page
    assert re.findall(r"\]\((?!https?://)[^)]*\)", page) == []
    assert {"Homepage", "Documentation", "Changelog", "Issues", "Security"} == {
        url.partition(",")[0] for url in metadata.get_all("Project-URL", [])
    }


def test_the_sdist_has_what_builds_the_wheel_and_no_build(dist: Path) -> None:
    (found,) = dist.glob("*.tar.gz")
    with tarfile.open(found) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}

    assert {"pyproject.toml", "README.md", "SECURITY.md", "NOTICE", "dags/many_channels.py"} <= names
    assert [name for name in names if name.startswith(("docs/_build", ".venv"))] == []
