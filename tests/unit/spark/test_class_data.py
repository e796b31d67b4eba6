"""The class-data archive that the JVMs of a local master share."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from airflow_provider_snowpipe.spark.submit.class_data import ClassDataArchive
from tests.waiting import wait_until

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
    def of(class_path: str = "", reads: str = "", **variables: str) -> ClassDataArchive:
        environment = {"JAVA_HOME": str(java), "PATH": "", "SPARK_DIST_CLASSPATH": class_path, **variables}
        found = ClassDataArchive.of(environment, "spark-submit", None, reads)
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
    wait_until(lambda: not classes.exists(), seconds=60, what="the archive is made")
    return classes


def test_second_load_lists_the_classes_and_the_third_uses_the_archive_of_them(archive, jvm, cache):
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


def test_no_load_waits_until_it_is_made(archive, jvm, tmp_path):
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


def test_one_that_could_not_be_made_is_made_an_hour_later(archive, jvm, cache, tmp_path):
    (tmp_path / "fails").touch()
    archive().options()
    make(archive(), jvm)
    [making] = cache.iterdir()
    assert making.suffix == ".making"
    assert archive().options() == ()

    os.utime(making, (time.time() - HOUR - 60,) * 2)

    assert listed(archive())


@pytest.mark.parametrize(("is_whole", "command"), [(False, ["java", "-cp", "x"]), (True, [])])
def test_classes_of_a_driver_that_failed_or_was_not_seen_are_removed(archive, cache, is_whole, command):
    archive().options()
    failed = archive()
    listed(failed).write_text("classes")
    failed.notice(command)
    failed.settle(is_whole=is_whole)

    assert [one.suffix for one in cache.iterdir()] == [".making"]


def test_those_that_nobody_uses_any_more_are_removed(archive, cache, jvm):
    archive().options()
    old = cache / "class-data-0.jsa"
    old.touch()
    os.utime(old, (time.time() - 31 * 24 * HOUR,) * 2)
    make(archive(), jvm)

    assert not old.exists()


def test_another_java_class_path_or_source_has_another(archive, java, tmp_path):
    jars = tmp_path / "jars"
    jars.mkdir()
    names = {archive().path, archive(str(jars)).path, archive(reads="table").path}
    os.utime(jars, (1, 1))
    names.add(archive(str(jars)).path)
    (java / "bin" / "java").write_bytes(b"#" * 9000)
    names.add(archive().path)

    assert len(names) == 5


def test_folder_that_others_can_write_is_not_used(java, cache):
    cache.mkdir(parents=True)
    cache.chmod(0o777)

    assert ClassDataArchive.of({"JAVA_HOME": str(java)}, "spark-submit", None, "") is None


def test_options_of_java_that_somebody_has_set_stay_alone(java):
    known = {"JAVA_HOME": str(java), "JDK_JAVA_OPTIONS": "-XX:+UseZGC"}

    assert ClassDataArchive.of(known, "spark-submit", None, "") is None
