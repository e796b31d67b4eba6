"""A real YARN on this machine: Hadoop's mini clusters, each in one JVM, from Maven Central."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
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
MASTER = "org.apache.spark.deploy.yarn.ApplicationMaster"
"""In a driver's command line in cluster mode."""
EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
SPARK_HOME = Path(pyspark.__file__).parent
_STOP_SECONDS = 60


@dataclass(frozen=True)
class YarnCluster:
    """A running cluster."""

    conf: Path
    address: str
    folder: Path
    process: subprocess.Popen[str]

    def submission(self, staging: Path) -> tuple[dict[str, str], dict[str, str]]:
        environment = {"HADOOP_CONF_DIR": str(self.conf), "SPARK_HOME": str(SPARK_HOME)}
        return environment, {
            "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
            "spark.yarn.stagingDir": staging.as_uri(),
        }

    def containers(self, *kinds: str) -> list[psutil.Process]:
        """The JVMs of its containers of some kinds."""
        # A container's command line names its folder of logs, and so the cluster.
        lines = ((one, one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"]))
        return [
            one
            for one, line in lines
            if any(kind in line for kind in kinds) and any(str(self.folder) in word for word in line)
        ]

    def logs(self) -> str:
        files = sorted(one for one in self.folder.rglob("std*") if one.is_file())
        return "\n".join(f"{one}:\n{one.read_text(errors='replace')[-2000:]}" for one in files)


@contextmanager
def yarn_cluster(folder: Path) -> Iterator[YarnCluster]:
    conf = folder / "conf"
    conf.mkdir(parents=True)
    with mini_cluster(folder, "MiniYarn", conf) as (process, ready):
        yield YarnCluster(conf, ready, folder, process)


@contextmanager
def mini_cluster(folder: Path, name: str, argument: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run one of Hadoop's mini clusters; skips the test where its jars cannot be had."""
    jars = [str(jar) for jar in maven_jars(*JARS)]
    home = ensure_java_home(folder / "java")
    assert home is not None, "no Java 17 or later"
    command = [str(home / "bin" / "java"), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    main = Path(__file__).parent / "clients" / f"{name}.java"
    command += ["-cp", os.pathsep.join([*jars, f"{SPARK_HOME}/jars/*"]), str(main), str(argument)]
    with (folder / "cluster.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        ready = next((line.split()[1] for line in process.stdout if line.startswith("ready ")), None)
        assert ready is not None, (folder / "cluster.log").read_text()[-3000:]
        yield process, ready
    finally:
        try:
            process.communicate(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
