"""What a local master is started with, and the class-data archive that its JVMs share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.spark.submit.local_spark import (
    ClassDataArchive,
    QuickStart,
    cache_folder,
    is_local,
    quick_python,
)

JAVA = "spark.driver.defaultJavaOptions"
HOUR = 3600


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "airflow-provider-snowpipe"


@pytest.fixture
def java(tmp_path):
    """A Java that is more than a wrapper."""
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_bytes(b"#" * 8192)
    return tmp_path / "jdk"


@pytest.fixture
def archive(java):
    def of(*class_path: str, reads: str = "") -> ClassDataArchive:
        found = ClassDataArchive.of(str(java), class_path, cache_folder(), reads)
        assert found is not None
        return found

    return of


@pytest.fixture
def jvm(tmp_path):
    """Command line of a JVM whose Java keeps how it was started in the archive that it makes."""
    program = tmp_path / "java"
    program.write_text(
        "#!/bin/sh\n"
        'for one in "$@"; do case "$one" in *SharedArchiveFile=*) archive="${one#*=}" ;; esac; done\n'
        '{ nice; printf "%s\\n" "$@"; } > "$archive"\n'
        '[ -f "$(dirname "$0")/fails" ] || exit 0\n'
        "exit 1\n"
    )
    program.chmod(0o700)
    return [str(program), "-cp", "/conf/:/jars/*", "-Xmx1g", "org.apache.spark.deploy.SparkSubmit"]


def listed(archive: ClassDataArchive) -> Path:
    """The file in which a JVM is asked to list its classes."""
    [option] = [one for one in archive.options() if one.startswith("-XX:DumpLoadedClassList=")]
    return Path(option.partition("=")[2])


def make(archive: ClassDataArchive, command: list[str]) -> Path:
    """Have an archive made, and wait for it; the file with the classes, which is removed last."""
    classes = listed(archive)
    classes.write_text("classes")
    archive.notice(command)
    archive.settle(is_whole=True)
    ends = time.monotonic() + 60
    while classes.exists():
        assert time.monotonic() < ends
        time.sleep(0.01)
    return classes


def quick(conf: Any = (), environment: Any = (), defaults: str = "", *, is_small: bool = True) -> QuickStart:
    return QuickStart(dict(conf), dict(environment), defaults, is_small, None)


def test_local_master_is_one_without_executors():
    assert all(map(is_local, ("local", "local[*]", "local[2,4]")))
    assert not any(map(is_local, ("local-cluster[2,1,1024]", "spark://local:7077", "yarn")))


class TestSettings:
    def test_load_that_may_be_large_gets_the_archive_alone(self, archive):
        archive().options()

        added = QuickStart({}, {}, "", False, archive()).settings()

        assert set(added) == {JAVA}
        assert "DumpLoadedClassList" in added[JAVA]
        assert "Tiered" not in added[JAVA]
        assert "GC" not in added[JAVA]

    def test_what_the_author_asks_for_stays_alone(self):
        fast = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        assert quick().settings() == {JAVA: fast, "spark.ui.enabled": "false"}
        assert quick(is_small=False).variables() == {"SPARK_LAUNCHER_OPTS": fast}
        for own in (
            {"conf": {JAVA: "-Xss4m"}},
            {"conf": {"spark.driver.extraJavaOptions": "-XX:+UseZGC"}},
            {"environment": {"JDK_JAVA_OPTIONS": "-XX:+UseZGC"}},
            {"environment": {"SPARK_SUBMIT_OPTS": "-Dx=y"}},
            {"defaults": "spark.driver.extraJavaOptions -XX:+UseZGC"},
        ):
            assert JAVA not in quick(**own).settings()
        for own in (
            {"conf": {"spark.ui.enabled": "true"}},
            {"conf": {"spark.ui.port": "4055"}},
            {"defaults": "spark.ui.enabled=true"},
        ):
            assert "spark.ui.enabled" not in quick(**own).settings()
        for name in ("SPARK_LAUNCHER_OPTS", "JDK_JAVA_OPTIONS"):
            assert quick(environment={name: "-Dx=y"}).variables() == {}

    @pytest.mark.parametrize("where", ["SPARK_CONF_DIR", "SPARK_HOME", "binary", "given"])
    def test_properties_files_are_read_from_every_directory_of_spark(self, tmp_path, java, where):
        conf = tmp_path / "spark" / "conf"
        binary = tmp_path / "spark" / "bin" / "spark-submit"
        for folder in (conf, binary.parent):
            folder.mkdir(parents=True)
        binary.touch(mode=0o755)
        file = conf / "spark-defaults.conf"
        file.write_text("spark.ui.enabled true")
        variables = {"SPARK_CONF_DIR": str(conf), "SPARK_HOME": str(conf.parent)}
        environment = {"JAVA_HOME": str(java), "PATH": ""}
        if where in variables:
            environment[where] = variables[where]

        found = QuickStart.of(
            {},
            environment,
            binary=str(binary) if where == "binary" else "spark-submit",
            properties_file=str(file) if where == "given" else None,
            driver_class_path=None,
            is_small=True,
        )

        assert "spark.ui.enabled" in found.defaults


class TestArchive:
    def test_second_load_lists_the_classes_and_the_third_uses_the_archive_of_them(self, archive, jvm, cache):
        assert archive().options() == ()
        classes = make(archive(), jvm)

        [option] = [one for one in archive().options() if "SharedArchiveFile" in one]

        priority, *arguments = Path(option.partition("=")[2]).read_text().splitlines()
        assert priority == "19"
        assert arguments == [
            "-Xshare:dump",
            f"-XX:SharedClassListFile={classes}",
            f"-XX:SharedArchiveFile={classes}.jsa",
            "-cp",
            "/conf/:/jars/*",
        ]
        assert [one.suffix for one in cache.iterdir()] == [".jsa"]

    def test_no_load_waits_until_it_is_made(self, archive, jvm, tmp_path):
        os.mkfifo(tmp_path / "gate")
        Path(jvm[0]).write_text(f"#!/bin/sh\nread line < {tmp_path / 'gate'}\n")
        archive().options()
        maker = archive()
        classes = listed(maker)
        classes.write_text("classes")
        maker.notice(jvm)

        maker.settle(is_whole=True)

        assert classes.exists()
        assert archive().options() == ()
        (tmp_path / "gate").write_text("go on\n")

    def test_one_that_could_not_be_made_is_made_an_hour_later(self, archive, jvm, cache, tmp_path):
        (tmp_path / "fails").touch()
        archive().options()
        make(archive(), jvm)
        [making] = cache.iterdir()
        assert making.suffix == ".making"
        assert archive().options() == ()

        os.utime(making, (time.time() - HOUR - 60,) * 2)

        assert listed(archive())

    @pytest.mark.parametrize(("is_whole", "command"), [(False, ["java", "-cp", "x"]), (True, [])])
    def test_classes_of_a_driver_that_failed_or_was_not_seen_are_removed(
        self, archive, cache, is_whole, command
    ):
        archive().options()
        failed = archive()
        listed(failed).write_text("classes")
        failed.notice(command)
        failed.settle(is_whole=is_whole)

        assert [one.suffix for one in cache.iterdir()] == [".making"]

    def test_those_that_nobody_uses_any_more_are_removed(self, archive, cache, jvm):
        archive().options()
        old = cache / "class-data-0.jsa"
        old.touch()
        os.utime(old, (time.time() - 31 * 24 * HOUR,) * 2)
        make(archive(), jvm)

        assert not old.exists()

    def test_another_java_class_path_or_source_has_another(self, archive, java, tmp_path):
        jars = tmp_path / "jars"
        jars.mkdir()
        names = {archive().path, archive(str(jars)).path, archive(reads="table").path}
        os.utime(jars, (1, 1))
        names.add(archive(str(jars)).path)
        (java / "bin" / "java").write_bytes(b"#" * 9000)
        names.add(archive().path)

        assert len(names) == 5

    def test_folder_that_others_can_write_is_not_used(self, java, cache):
        cache.mkdir(parents=True)
        cache.chmod(0o777)

        assert ClassDataArchive.of(str(java), (), cache) is None


class TestPythonWithoutZipFiles:
    """PySpark as it is installed, instead of Spark's zip file."""

    @pytest.fixture
    def environment(self):
        python = sys.executable
        return {
            "PATH": str(Path(python).parent),
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
        }

    def test_it_takes_the_zip_files_off_the_path_and_nothing_else(self, tmp_path, environment):
        found = quick_python(tmp_path, environment, binary="spark-submit")

        assert found == dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(tmp_path / "python"))
        library = "/home of/pyspark/python/lib"
        path = [
            "/a b",
            f"{library}/pyspark.zip",
            f"{library}/py4j-0.10.9.9-src.zip",
            "/c/*",
            "/d/pyspark.zip",
        ]
        program = (
            "import json, os, sys; print(json.dumps([os.environ['PYTHONPATH'], sys.executable, sys.argv]))"
        )
        done = subprocess.run(
            [found["PYSPARK_PYTHON"], "-c", program, "x y", "*"],
            env={**environment, "PYTHONPATH": ":".join(path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout) == ["/a b:/c/*:/d/pyspark.zip", sys.executable, ["-c", "x y", "*"]]

    @pytest.mark.parametrize(
        "change",
        [
            {"PYSPARK_PYTHON": "/usr/bin/python3"},
            {"PYSPARK_DRIVER_PYTHON": "/usr/bin/python3"},
            {"SPARK_HOME": "/opt/spark"},
            {"PATH": "/nowhere"},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_another_python_or_another_spark_stays(self, tmp_path, environment, change):
        assert quick_python(tmp_path, {**environment, **change}, binary="spark-submit") == {}
        assert list(tmp_path.iterdir()) == []
