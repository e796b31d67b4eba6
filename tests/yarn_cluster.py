"""A real YARN on this machine: Hadoop's mini cluster in one JVM, from Maven Central."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from airflow_provider_snowpipe.spark.submit.local_spark import ensure_java_home
from tests.maven_jars import maven_jars

# The mini cluster's main classes are test classes, and ask for what tests ask for.
JARS = (
    "org.apache.hadoop:hadoop-client-minicluster:3.5.0",
    "org.junit.jupiter:junit-jupiter-api:5.12.2",
    "org.opentest4j:opentest4j:1.3.0",
    "org.junit.platform:junit-platform-commons:1.12.2",
    "org.bouncycastle:bcprov-jdk18on:1.80",
    "org.bouncycastle:bcpkix-jdk18on:1.80",
    "org.bouncycastle:bcutil-jdk18on:1.80",
    "org.mockito:mockito-core:4.11.0",
    "junit:junit:4.13.2",
)
SPARK_HOME = Path(pyspark.__file__).parent
_STOP_SECONDS = 60
_MAIN = Path(__file__).parent / "clients" / "MiniYarn.java"


@dataclass(frozen=True)
class YarnCluster:
    """A running cluster.

    :param conf: the folder of its configuration, ``HADOOP_CONF_DIR``
    :param address: the ResourceManager's web address, ``host:port``
    :param folder: where it keeps its containers' files and logs
    """

    conf: Path
    address: str
    folder: Path

    def logs(self) -> str:
        """The end of what every container has written."""
        files = sorted(one for one in self.folder.rglob("std*") if one.is_file())
        return "\n".join(f"{one}:\n{one.read_text(errors='replace')[-2000:]}" for one in files)


@contextmanager
def yarn_cluster(folder: Path) -> Iterator[YarnCluster]:
    """Run a cluster; skips the test where its jars cannot be had.

    :param folder: for its files
    """
    jars = [str(jar) for jar in maven_jars(*JARS)]
    home = ensure_java_home(folder / "java")
    assert home is not None, "no Java 17 or later"
    conf = folder / "conf"
    conf.mkdir(parents=True)
    command = [str(home / "bin" / "java"), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command += ["-cp", os.pathsep.join([*jars, f"{SPARK_HOME}/jars/*"]), str(_MAIN), str(conf)]
    with (folder / "cluster.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        ready = next((line.split()[1] for line in process.stdout if line.startswith("ready ")), None)
        assert ready is not None, (folder / "cluster.log").read_text()[-3000:]
        yield YarnCluster(conf, ready, folder)
    finally:
        try:
            process.communicate(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
