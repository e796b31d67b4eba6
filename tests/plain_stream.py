"""Streams ordered JSON files into a table by ``writeStream`` alone, one file a micro-batch.

``spark-submit plain_stream.py FOLDER CHECKPOINT name=value...``, where every ``name=value`` is an option of
``format("snowpipe")``.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(folder: str, checkpoint: str, options: dict[str, str]) -> None:
    """Load what the checkpoint does not know as loaded."""
    spark = SparkSession.builder.appName("plain stream").getOrCreate()
    files = spark.readStream.schema("ID BIGINT, N STRING").option("maxFilesPerTrigger", 1).json(folder)
    writer = files.coalesce(1).writeStream.format("snowpipe").options(**options)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], dict(argument.split("=", 1) for argument in sys.argv[3:]))
