"""Iceberg tables written by Iceberg's own Java library, whose jar comes from Maven Central.

The jar is Iceberg's runtime for an older Spark; what writes tables in it needs no Spark, but Hadoop's
classes, which PySpark brings.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

import pyspark
import pytest

from airflow_provider_snowpipe.spark.submit.local_spark import ensure_java_home
from tests.java_options import cache_folder
from tests.maven_jars import maven_jars

_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_PROGRAM = """
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.*;
import org.apache.iceberg.data.GenericRecord;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.data.parquet.GenericParquetWriter;
import org.apache.iceberg.deletes.PositionDelete;
import org.apache.iceberg.deletes.PositionDeleteWriter;
import org.apache.iceberg.hadoop.HadoopTables;
import org.apache.iceberg.io.DataWriter;
import org.apache.iceberg.parquet.Parquet;
import org.apache.iceberg.types.Types;

public class WriteTables {
  static int files = 0;

  static Table create(String root, String name, String version, boolean partitioned) {
    Schema schema = new Schema(
        Types.NestedField.required(1, "ID", Types.LongType.get()),
        Types.NestedField.optional(2, "FILE", Types.StringType.get()),
        Types.NestedField.optional(3, "U", Types.UUIDType.get()));
    PartitionSpec spec = partitioned
        ? PartitionSpec.builderFor(schema).identity("FILE").build() : PartitionSpec.unpartitioned();
    return new HadoopTables(new Configuration()).create(schema, spec,
        java.util.Map.of("format-version", version, "commit.manifest.min-count-to-merge", "2"),
        root + "/" + name);
  }

  static DataFile write(Table table, String group, long first, long end, long step) throws Exception {
    PartitionKey key = new PartitionKey(table.spec(), table.schema());
    Record row = GenericRecord.create(table.schema());
    row.setField("FILE", group);
    key.partition(row);
    DataWriter<Record> writer = Parquet
        .writeData(table.io().newOutputFile(table.location() + "/data/" + ++files + ".parquet"))
        .schema(table.schema()).withSpec(table.spec()).withPartition(key)
        .createWriterFunc(GenericParquetWriter::create).overwrite().build();
    try (writer) {
      for (long id = first; id < end; id += step) {
        row.setField("ID", id);
        row.setField("U", new java.util.UUID(0, id));
        writer.write(row);
      }
    }
    return writer.toDataFile();
  }

  static void partitioned(String root, String name, String version) throws Exception {
    Table table = create(root, name, version, true);
    DataFile a = write(table, "g0", 0, 10, 2), b = write(table, "g1", 1, 10, 2);
    table.newAppend().appendFile(a).appendFile(b).commit();
    DataFile c = write(table, "g0", 10, 20, 2);
    table.newAppend().appendFile(c).commit();
    table.newRewrite().rewriteFiles(Set.of(a, c), Set.of(write(table, "g0", 0, 20, 2))).commit();
    table.newAppend().appendFile(write(table, "g1", 21, 25, 2)).commit();
  }

  static void deleted(String root) throws Exception {
    Table table = create(root, "deleted", "2", false);
    DataFile a = write(table, "x", 0, 10, 1);
    table.newAppend().appendFile(a).commit();
    PositionDeleteWriter<Record> writer = Parquet
        .writeDeletes(table.io().newOutputFile(table.location() + "/data/deletes.parquet"))
        .createWriterFunc(GenericParquetWriter::create).overwrite().withSpec(table.spec()).buildPositionWriter();
    try (writer) {
      writer.write(PositionDelete.<Record>create().set(a.location(), 3L));
    }
    table.newRowDelta().addDeletes(writer.toDeleteFile()).commit();
    table.newAppend().appendFile(write(table, "x", 10, 12, 1)).commit();
  }

  static void expired(String root) throws Exception {
    Table table = create(root, "expired", "2", false);
    for (long first = 0; first < 15; first += 5) {
      table.newAppend().appendFile(write(table, "x", first, first + 5, 1)).commit();
    }
    table.expireSnapshots().expireOlderThan(Long.MAX_VALUE).retainLast(2).commit();
  }

  public static void main(String[] arguments) throws Exception {
    partitioned(arguments[0], "two", "2");
    partitioned(arguments[0], "three", "3");
    deleted(arguments[0]);
    expired(arguments[0]);
  }
}
"""


def java_tables() -> Path:
    """The tables, written once into the user's cache; the test is skipped where that cannot be done.

    ``two`` and ``three``, of these format versions and partitioned by ``FILE``: two appends, a compaction,
    an append. ``deleted``: an append, one row deleted by a delete file, an append. ``expired``: three
    appends, of which the first one's snapshot is not kept.
    """
    (runtime,) = maven_jars(_RUNTIME)
    digest = hashlib.sha256((_RUNTIME + _PROGRAM).encode()).hexdigest()[:16]
    folder = cache_folder() / f"iceberg-{digest}"
    folder.mkdir(exist_ok=True)
    tables, written = folder / "tables", folder / "written"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not written.exists():
            # Tables hold their own path, so that they are written where they stay.
            shutil.rmtree(tables, ignore_errors=True)
            _write(folder, tables, runtime)
            written.touch()
    return tables


def _write(folder: Path, tables: Path, runtime: Path) -> None:
    java = ensure_java_home(folder / "java")
    launcher = shutil.which("java") if java is None else str(java / "bin" / "java")
    if launcher is None or shutil.which("javac") is None:
        pytest.skip("there is no Java compiler for the program that writes Iceberg tables")
    program = folder / "WriteTables.java"
    program.write_text(_PROGRAM)
    jars = f"{runtime}:{Path(pyspark.__file__).parent / 'jars'}/*"
    command = [launcher, "-cp", jars, str(program), str(tables)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
