"""Wheels and sdists as ``make dist`` builds them: what is in them, and what a package index shows."""

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
SERVICE = "snowpipe_local"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels and sdists of both distributions, built and checked by twine; skips where no index answers."""
    folder = tmp_path_factory.mktemp("dist")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
    if subprocess.run([*pip, "--dest", str(folder), "hatchling"], capture_output=True).returncode:
        pytest.skip("no package index answers")
    done = subprocess.run(
        [ROOT / "scripts" / "dist.sh", str(folder / "dist")], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("PASSED") == 4
    return folder / "dist"


def _wheel(dist: Path, name: str) -> zipfile.ZipFile:
    (found,) = dist.glob(f"{name}-*.whl")
    return zipfile.ZipFile(found)


@pytest.fixture(scope="module")
def wheel(dist: Path) -> zipfile.ZipFile:
    """The wheel of the provider."""
    return _wheel(dist, NAME)


def _metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def test_each_example_dag_is_a_module_of_the_wheel(wheel: zipfile.ZipFile) -> None:
    folder = f"{NAME}/example_dags/"
    shipped = {name: wheel.read(name) for name in wheel.namelist() if name.startswith(folder)}
    assert shipped == {f"{folder}{dag.name}": dag.read_bytes() for dag in (ROOT / "dags").glob("*.py")}
    assert len(shipped) > 10


def test_the_wheel_of_the_service_has_its_data_and_its_command(dist: Path) -> None:
    service = _wheel(dist, SERVICE)
    names = ("functions.txt", "parameters.csv", "engine_errors.tsv", "history.sql")
    tables = {f"{SERVICE}/sql/{name}" for name in names}
    assert {f"{SERVICE}/openapi.json", f"{SERVICE}/engine/macros.sql", *tables} <= set(service.namelist())
    folders = {name.partition("/")[0] for name in service.namelist()}
    assert folders == {SERVICE, f"{_release(service)}.dist-info"}
    entry_points = service.read(f"{_release(service)}.dist-info/entry_points.txt").decode()
    assert "snowpipe-local = snowpipe_local.cli:main" in entry_points


def test_the_wheel_of_the_provider_has_nothing_of_the_service(wheel: zipfile.ZipFile) -> None:
    folders = {name.partition("/")[0] for name in wheel.namelist()}
    assert folders == {NAME, "pyspark_snowpipe", f"{_release(wheel)}.dist-info"}
    assert "console_scripts" not in wheel.read(f"{_release(wheel)}.dist-info/entry_points.txt").decode()
    needed = _metadata(wheel).get_all("Requires-Dist", [])
    assert [one for one in needed if re.match("duckdb|sqlglot|uvicorn|httptools|boto3|zstandard", one)] == []
    (of_extra,) = [one for one in needed if one.endswith("extra == 'local'")]
    assert of_extra.startswith("snowpipe-local<")


def _release(wheel: zipfile.ZipFile) -> str:
    assert wheel.filename is not None
    return "-".join(Path(wheel.filename).name.split("-")[:2])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (NAME, {"SECURITY.md", "dags/many_channels.py", "tests/local_service.py"}),
        (SERVICE, {"docs/conformance.md", "tests/streaming_rest.py"}),
    ],
)
def test_each_distribution_has_its_page_its_licences_and_what_builds_it(
    dist: Path, name: str, expected: set[str]
) -> None:
    wheel = _wheel(dist, name)
    assert {"py.typed", "LICENSE", "NOTICE"} <= {one.rpartition("/")[2] for one in wheel.namelist()}
    metadata = _metadata(wheel)
    assert "](https://" in str(metadata.get_payload())
    assert re.findall(r"\]\((?!https?://)[^)]*\)", str(metadata.get_payload())) == []
    urls = {url.partition(",")[0] for url in metadata.get_all("Project-URL", [])}
    assert urls == {"Homepage", "Documentation", "Changelog", "Issues", "Security"}

    (found,) = dist.glob(f"{name}-*.tar.gz")
    with tarfile.open(found) as sdist:
        names = {member.partition("/")[2] for member in sdist.getnames()}
    assert {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "NOTICE", *expected} <= names
    assert [one for one in names if one.startswith(("docs/_build", ".venv", "snowpipe-local"))] == []
