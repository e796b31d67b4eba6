"""Java options of all tests that start Spark: quick to start, at the price of speed in long runs.

``python -m tests.java_options`` makes the class-data archive in the user's cache, once for each Java, PySpark
and set of options; tests use it where it is there and start slower where it is not.
"""

import fcntl
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from airflow_provider_snowpipe.spark.submit.local_spark import ensure_java_home

_QUIET = ("-Xshare:auto", "-Xlog:disable", "-Xlog:all=off")
_QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *_QUIET)


def cache_folder() -> Path:
    """The folder of this project in the user's cache, made if it is missing."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "airflow-provider-snowpipe"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def use_quick_java() -> None:
    """Let every Java of this process and its children start quickly; options that the caller set stay."""
    if "JDK_JAVA_OPTIONS" in os.environ:
        return
    archive = _archive()
    shared = (f"-XX:SharedArchiveFile={archive}",) if archive is not None and archive.exists() else ()
    os.environ["JDK_JAVA_OPTIONS"] = " ".join((*_QUICK_START, *shared))


def make_archive() -> Path | None:
    """Make the class-data archive unless it is there; None where there is no Java or no PySpark."""
    archive = _archive()
    if archive is None:
        return None
    with (archive.parent / "class-data.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _train(archive)
    return archive


def _archive() -> Path | None:
    java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin{os.pathsep}{os.environ['PATH']}")
    try:
        pyspark = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return None
    if java is None:
        return None
    binary = Path(java).resolve()
    # The archive is for this Java's files and this class path; another of either is another archive.
    facts = (binary, binary.stat().st_mtime_ns, sys.prefix, pyspark, *_QUICK_START)
    name = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return cache_folder() / f"spark-{name}.jsa"


def _train(archive: Path) -> None:
    fresh = archive.with_suffix(f".{os.getpid()}")
    with tempfile.TemporaryDirectory() as folder:
        java = ensure_java_home(Path(folder) / "java")
        environment = {
            **os.environ,
            **({"JAVA_HOME": str(java)} if java else {}),
            "JDK_JAVA_OPTIONS": " ".join(_QUICK_START),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false --driver-java-options "
            f"-XX:ArchiveClassesAtExit={fresh} pyspark-shell",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = [sys.executable, "-m", "tests.java_options", "train", folder]
        quiet = subprocess.DEVNULL
        subprocess.run(command, env=environment, check=True, timeout=300, stdout=quiet, stderr=quiet)
    fresh.replace(archive)


def _load_classes(folder: str) -> None:
    """Use what the tests use of Spark, so that its classes are in the archive."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, functions

    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    rows = spark.range(1000).withColumn("P", functions.col("id") % 3)
    rows = rows.withColumn("NAME", functions.concat(functions.lit("row "), "id"))
    for form in ("parquet", "json", "csv"):
        path = f"{folder}/{form}"
        rows.write.format(form).save(path)
        read = spark.read.schema(rows.schema).format(form).load(path)
        read.groupBy("P").agg(functions.sum("id"), functions.max("NAME")).orderBy("P").collect()
    spark.sparkContext.parallelize(range(10), 2).map(lambda number: number + 1).collect()
    rows.repartition(2, "P").sortWithinPartitions("id").mapInArrow(lambda each: each, rows.schema).count()
    stream = spark.readStream.schema(rows.schema).json(f"{folder}/json").writeStream.format("noop")
    query = stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination(120)
    spark.stop()
    gateway = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends by itself, and writes the archive as it does
    gateway.proc.wait(120)


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        _load_classes(sys.argv[2])
    else:
        print(make_archive() or "no Java or no PySpark: no class-data archive")
