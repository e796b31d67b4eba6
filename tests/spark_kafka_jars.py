"""Spark's own Kafka source for tests: its jars from Maven Central, never part of the project.

Its jar for delegation tokens, ``spark-token-provider-kafka-0-10``, is not to be had everywhere Maven Central
is. Where it is not, two classes of ours stand in for it, which hold a map and know no delegation token. All
that reads records, Spark's classes and Kafka's client, is the real thing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pyspark
import pytest

from tests.java_options import cache_folder
from tests.maven_jars import maven_jars

_SPARK = pyspark.__version__
_JARS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{_SPARK}",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.12.1",
)
_TOKENS = f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{_SPARK}"
_UPDATER = """
package org.apache.spark.kafka010;

import java.util.HashMap;
import java.util.Map;

public class KafkaConfigUpdater {
  private final Map<String, Object> settings;

  public KafkaConfigUpdater(String module, scala.collection.immutable.Map<String, String> given) {
    settings = new HashMap<>(scala.jdk.javaapi.CollectionConverters.asJava(given));
  }

  public KafkaConfigUpdater set(String key, Object value) {
    settings.put(key, value);
    return this;
  }

  public KafkaConfigUpdater setIfUnset(String key, Object value) {
    settings.putIfAbsent(key, value);
    return this;
  }

  public KafkaConfigUpdater setAuthenticationConfigIfNeeded() { return this; }

  public KafkaConfigUpdater setAuthenticationConfigIfNeeded(scala.Option<?> cluster) { return this; }

  public Map<String, Object> build() { return settings; }
}
"""
_UTIL = """
package org.apache.spark.kafka010;

public final class KafkaTokenUtil$ {
  public static final KafkaTokenUtil$ MODULE$ = new KafkaTokenUtil$();

  public scala.Option<?> findMatchingTokenClusterConfig(org.apache.spark.SparkConf conf, String servers) {
    return scala.Option.empty();
  }

  public boolean needTokenUpdate(java.util.Map<String, Object> settings, scala.Option<?> cluster) {
    return false;
  }
}
"""


def spark_kafka_jars() -> list[Path]:
    """The jars for ``spark.jars``; the test is skipped where they cannot be had."""
    jars = maven_jars(*_JARS)
    try:
        return [*jars, *maven_jars(_TOKENS)]
    except pytest.skip.Exception:
        return [*jars, _stand_in(cache_folder() / f"kafka-tokens-{_SPARK}")]


def _stand_in(folder: Path) -> Path:
    """The jar of the two classes, compiled once into the user's cache."""
    jar = folder / "no-delegation-tokens.jar"
    if jar.is_file():
        return jar
    compiler = shutil.which("javac")
    if compiler is None:
        pytest.skip(f"{_TOKENS} cannot be fetched, and there is no javac to compile what stands in for it")
    work = folder / str(os.getpid())
    work.mkdir(parents=True, exist_ok=True)
    sources = {"KafkaConfigUpdater.java": _UPDATER, "KafkaTokenUtil$.java": _UTIL}
    for name, text in sources.items():
        (work / name).write_text(text)
    classes = work / "classes"
    spark = Path(pyspark.__file__).parent / "jars"
    command = [compiler, "--release", "17", "-cp", f"{spark}/*", "-d", str(classes)]
    done = subprocess.run(
        [*command, *(str(work / name) for name in sources)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(work / jar.name, "w") as archive:
        for found in sorted(classes.rglob("*.class")):
            archive.write(found, found.relative_to(classes))
    (work / jar.name).replace(jar)
    shutil.rmtree(work)
    return jar
