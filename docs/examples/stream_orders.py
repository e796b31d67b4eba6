"""Stream ordered JSON files into a table, each row once.

``spark-submit stream_orders.py FOLDER CHECKPOINT name=value...``, where every ``name=value`` is an option of
``format("snowpipe")``. The program ends when all files are loaded; run it again, from a scheduler for
example, and it goes on where it was.
"""

import sys

from pyspark.sql import DataFrame, SparkSession

from airflow_provider_snowpipe.spark import write_checked

SCHEMA = "REGION STRING, ID BIGINT, AMOUNT DECIMAL(12, 2)"


def main(folder: str, checkpoint: str, options: dict[str, str]) -> None:
    """Load what is there and not yet committed, one file a micro-batch."""
    spark = SparkSession.builder.appName("orders to Snowflake").getOrCreate()

    def write(orders: DataFrame, batch: int) -> None:
        """Send the orders of a micro-batch, those of each region through its own channel and in order."""
        ordered = orders.repartition(2, "REGION").sortWithinPartitions("REGION", "ID")
        write_checked(ordered, {**options, "channelColumn": "REGION", "batchId": batch})

    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(folder)
    query = files.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], dict(argument.split("=", 1) for argument in sys.argv[3:]))
