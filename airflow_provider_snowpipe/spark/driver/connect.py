"""The job's tasks over Spark Connect, which has data frames but no ``SparkContext``."""

from __future__ import annotations

import io
import pickle
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_snowpipe.spark.package_archive import write_package_archive
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")
_R = TypeVar("_R")
_SCHEMA = "id long, result binary"


def is_connect(spark: Any) -> bool:
    """True for a session of Spark Connect, False for another session or a context.

    :param spark: the session or context
    """
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def add_package(session: Any) -> None:
    """Give the server's executors our code; what they have installed themselves comes after it.

    :param session: a session of Spark Connect
    """
    with tempfile.TemporaryDirectory(prefix="snowpipe-connect-") as directory:
        session.addArtifacts(str(write_package_archive(Path(directory))), pyfile=True)


def one_task_each(session: Any, work: Callable[[_T], _R], items: list[_T]) -> list[_R]:
    """Run one Spark task for each item, in one job.

    A range of as many partitions as rows has one row in each, and keeps them where the items are joined by a
    broadcast, which shuffles nothing (observed with Spark 4.2).

    :param session: a session of Spark Connect
    :param work: what to do with an item; its result is pickled
    :param items: the items
    :return: the results, in the order of the items
    :raises ConfigurationError: if the server answers with something else
    :raises pyspark.errors.PySparkException: if a task failed for good
    """

    def of_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for row in batch.to_pylist():
                result = pickle.dumps(work(pickle.loads(row["item"])))  # noqa: S301  the driver's own
                yield pa.RecordBatch.from_pylist(
                    [{"id": row["id"], "result": result}],
                    schema=pa.schema([("id", pa.int64()), ("result", pa.binary())]),
                )

    packed = [(number, pickle.dumps(item)) for number, item in enumerate(items)]
    items_by_id = session.createDataFrame(packed, "id long, item binary").hint("broadcast")
    frame = session.range(0, len(items), 1, len(items)).join(items_by_id, "id")
    rows = sorted(frame.mapInArrow(of_partition, _SCHEMA).collect(), key=lambda row: int(row["id"]))
    return [_Result(io.BytesIO(row["result"])).load() for row in rows]


class _Result(pickle.Unpickler):
    """A result of our tasks: our dataclasses and plain values, since a server may be somebody else's."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("airflow_provider_snowpipe.") and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and is_dataclass(found):
                return found
        raise ConfigurationError(
            f"the Spark Connect server answered with {module}.{name}, which no task of this job returns: "
            "see whose server it is, and whether what is in between changes its answers"
        )
