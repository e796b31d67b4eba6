"""The same rows through Spark by our paths and by the official SDK's ``append_rows`` called inside Spark."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from csv import DictReader
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.data_source.source import SnowpipeDataSource
from airflow_provider_snowpipe.spark.driver.credentials import write_credentials
from airflow_provider_snowpipe.spark.driver.plan import JobPlan
from airflow_provider_snowpipe.spark.driver.run import Run
from airflow_provider_snowpipe.spark.driver.session import start_spark
from airflow_provider_snowpipe.spark.source import SourceSecrets, SourceSpec
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource
from airflow_provider_snowpipe.spark.sources.tables.rows import row_text
from airflow_provider_snowpipe.spark.sources.tables.spec import TableSource as TableSourceSpec
from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions, encode_ndjson
from benchmarks.receiver_process import Receiver
from tests.spark_session import spark_environment

TABLE = "ROWS"
KINDS = ("ndjson", "parquet")
FILE_KINDS = (*KINDS, "csv", "avro")
_NESTED = ["PLACE", "TAGS"]
"""Columns that CSV has no form for."""
_AVRO = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "ID", "type": "long"},
        {"name": "QUANTITY", "type": "int"},
        *({"name": name, "type": "string"} for name in ("HOST", "PATH", "AGENT")),
        {"name": "NOTE", "type": ["null", "string"]},
        {
            "name": "AMOUNT",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 4},
        },
        {"name": "SEEN_AT", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "IS_OPEN", "type": "boolean"},
        {"name": "SCORE", "type": "double"},
        {
            "name": "PLACE",
            "type": {
                "type": "record",
                "name": "place",
                "fields": [{"name": "city", "type": "string"}, {"name": "code", "type": "long"}],
            },
        },
        {"name": "TAGS", "type": {"type": "map", "values": "string"}},
    ],
}
_ROW_GROUP = 10_000
SDK_ROWS = 10_000
"""Rows in one ``append_rows``."""
_FULL_SECONDS = 0.02
"""Pause before the SDK, which reports to nobody when it has room again, is asked once more."""
UNPACED = BatchLimits(bytes_per_second=None, requests_per_second=1e6)
"""The official SDK keeps to neither 20 MB nor ten requests a second of a channel; nor does our side here."""


def local_spark(folder: Path) -> Any:
    """A session that runs one task at a time; workers import the benchmarks from here.

    :param folder: for what Java needs
    """
    os.environ.update(spark_environment(folder), SS_LOG_LEVEL="error")
    os.environ["PYSPARK_SUBMIT_ARGS"] = (
        "--master local[1] --driver-memory 2g --conf spark.ui.enabled=false "
        "--conf spark.ui.showConsoleProgress=false pyspark-shell"
    )
    spark = start_spark("benchmark")
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def source_file(folder: Path, kind: str, group: str = "g") -> Path:
    """The file of a format that holds the rows."""
    return folder / kind / group / f"0.{kind}"


def write_sources(
    folder: Path,
    rows: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    group: str = "g",
    kinds: Sequence[str] = KINDS,
) -> dict[str, int]:
    """Write rows as one file of each format; returns their bytes."""
    files = {kind: source_file(folder, kind, group) for kind in kinds}
    for file in files.values():
        file.parent.mkdir(parents=True)
    made = list(rows)
    with files["ndjson"].open("wb") as lines:
        lines.writelines(map(encode_ndjson, made))
    table = pa.Table.from_batches(made, schema)
    pq.write_table(table, files["parquet"], compression="zstd", row_group_size=_ROW_GROUP)
    if "csv" in files:
        csv.write_csv(table.drop_columns(_NESTED), files["csv"])
    if "avro" in files:
        with files["avro"].open("wb") as out:
            records = (row for batch in made for row in _dicts(batch))
            fastavro.writer(out, _AVRO, records, codec="deflate")
    return {kind: file.stat().st_size for kind, file in files.items()}


class UnpacedDataSource(SnowpipeDataSource):
    """``format("snowpipe")`` without a limit of bytes or requests a second."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "snowpipe_unpaced"

    def _checked(self, schema: Any, overwrite: bool) -> WriteOptions:
        options = super()._checked(schema, overwrite)
        paces = {name: getattr(UNPACED, name) for name in ("bytes_per_second", "requests_per_second")}
        return replace(options, limits=replace(options.limits, **paces))


@dataclass
class Loads:
    """Every way to send the rows, each call through a channel of its own.

    :param spark: the session
    :param receiver: where they go
    :param folder: where :func:`write_sources` put the files
    """

    spark: Any
    receiver: Receiver
    folder: Path
    _count: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        key = KeyPair(self.receiver.account, self.receiver.user, self.receiver.key_file.read_bytes())
        write_credentials(key, self._credentials)
        self.spark.dataSource.register(UnpacedDataSource)

    def job_of_files(
        self,
        kind: str,
        path: str | None = None,
        secrets: SourceSecrets | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Our job, whose tasks read the files themselves; each run has a log of its own.

        :param path: where they are, None for the folder
        :param metadata: columns that show where a row is from
        """
        log_path = str(self.folder / "logs" / str(next(self._count)))
        source = FileSource(
            path or str(self.folder / kind), format=kind, log_path=log_path, metadata=metadata
        )
        self._run(source, secrets)

    def job_of_table(self) -> None:
        """Our job on rows that Spark reads, sorts by the offset column and writes as JSON."""
        self._run(TableSourceSpec("ID", path=str(self.folder / "parquet" / "g")))

    def frame(self) -> None:
        """``df.write`` with an offset column."""
        options = {
            "accountUrl": self.receiver.url,
            "caBundle": str(self.receiver.ca_file),
            "credentialsFile": str(self._credentials),
            "database": "LOCAL",
            "schema": "PUBLIC",
            "table": TABLE,
            "channelPrefix": f"frame{next(self._count)}",
            "partitions": "1",
            "offsetColumn": "ID",
        }
        self._read().write.format(UnpacedDataSource.name()).options(**options).mode("append").save()

    def sdk_of_files(self, kind: str) -> None:
        """The official SDK in a task that reads the file."""
        task = partial(_sdk_file, self.receiver.sdk_properties(), f"sdk{next(self._count)}", kind)
        self.spark.sparkContext.parallelize([str(self._file(kind))], 1).map(task).collect()

    def sdk_of_frame(self) -> None:
        """The official SDK in ``mapInArrow``."""
        task = partial(_sdk_frame, self.receiver.sdk_properties(), f"sdk{next(self._count)}")
        self._read().mapInArrow(task, "rows long").collect()

    def written_by_jvm(self) -> int:
        """Rows as JSON by Spark's ``to_json``, as the table source has it; returns bytes, sends nothing."""
        rows = self._read()
        return self._bytes(rows.select(row_text(rows.schema, NdjsonOptions()).alias("line")), _text_bytes)

    def written_by_worker(self) -> int:
        """Rows as JSON by the Python worker, as ``df.write`` has it; returns bytes, sends nothing."""
        return self._bytes(self._read(), _encoded_bytes)

    @staticmethod
    def _bytes(rows: Any, count: Callable[[pa.RecordBatch], int]) -> int:
        def task(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"bytes": pa.array([sum(map(count, found))], pa.int64())})

        return int(rows.mapInArrow(task, "bytes long").collect()[0][0])

    @property
    def _credentials(self) -> Path:
        return self.folder / "credentials.json"

    def _file(self, kind: str) -> Path:
        return source_file(self.folder, kind)

    def _read(self) -> Any:
        return self.spark.read.parquet(str(self._file("parquet")))

    def _run(self, source: SourceSpec, secrets: SourceSecrets | None = None) -> None:
        plan = JobPlan(
            application="benchmark",
            account_url=self.receiver.url,
            pipe=PipeName.default_for_table("LOCAL", "PUBLIC", TABLE),
            channel_prefix=f"job{next(self._count)}",
            source_name="rows",
            source=source,
            credentials_path=str(self._credentials),
            ca_bundle=str(self.receiver.ca_file),
            limits=UNPACED,
        )
        with self.receiver.client(TABLE) as client:
            run = Run(plan, client, lambda: self.spark, secrets)
            run.prepare()
            run.load(self.spark.sparkContext)
            run.verify()
            run.finish()


def _text_bytes(batch: pa.RecordBatch) -> int:
    return int(batch.column(0).buffers()[2].size)


def _encoded_bytes(batch: pa.RecordBatch) -> int:
    return len(encode_ndjson(batch)) if batch.num_rows else 0


def _sdk_file(properties: Mapping[str, str], channel: str, kind: str, path: str) -> int:
    if kind == "parquet":
        with pq.ParquetFile(path) as file:
            return sdk_append(properties, channel, (_dicts(batch) for batch in file.iter_batches(SDK_ROWS)))
    if kind == "csv":
        with open(path, newline="") as lines:
            found = DictReader(lines)
            return sdk_append(properties, channel, iter(lambda: list(itertools.islice(found, SDK_ROWS)), []))
    with open(path, "rb") as stream:
        if kind == "avro":
            rows = fastavro.reader(stream)
            return sdk_append(properties, channel, iter(lambda: list(itertools.islice(rows, SDK_ROWS)), []))
        some = iter(lambda: [json.loads(line) for line in itertools.islice(stream, SDK_ROWS)], [])
        return sdk_append(properties, channel, some)


def _sdk_frame(
    properties: Mapping[str, str], channel: str, found: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    rows = sdk_append(properties, channel, (_dicts(batch) for batch in found))
    yield pa.record_batch({"rows": [rows]})


def _dicts(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return batch.to_pylist(maps_as_pydicts="strict")


def sdk_append(properties: Mapping[str, str], channel_name: str, some: Iterable[list[dict[str, Any]]]) -> int:
    """Open a channel with the official SDK, append lists of rows, and wait for their commit.

    :param properties: of its client
    :param channel_name: the channel
    :param some: the rows, in lists
    """
    os.environ["SS_LOG_LEVEL"] = "error"
    from snowflake.ingest.streaming import StreamingIngestClient

    pipe = PipeName.default_for_table("LOCAL", "PUBLIC", TABLE)
    client = StreamingIngestClient(
        channel_name, pipe.database, pipe.schema, pipe.pipe, properties=dict(properties)
    )
    channel, _ = client.open_channel(channel_name)
    sent = 0
    for rows in some:
        _append_when_taken(channel, rows, sent)
        sent += len(rows)
    channel.wait_for_commit(lambda token: token == str(sent - 1), 600)
    channel.close()
    client.close()
    return sent


def _append_when_taken(channel: Any, rows: list[dict[str, Any]], first: int) -> None:
    """Append once the SDK has room: it takes 256 MB and about a million rows that are under way."""
    from snowflake.ingest.streaming import StreamingIngestError, StreamingIngestErrorCode

    codes = StreamingIngestErrorCode
    full = (codes.RECEIVER_SATURATED, codes.MEMORY_THRESHOLD_EXCEEDED)
    while True:
        try:
            channel.append_rows(rows, str(first), str(first + len(rows) - 1))
        except StreamingIngestError as error:
            if error.error_code not in full:
                raise
            time.sleep(_FULL_SECONDS)
        else:
            return
