"""Options of a write into the table of the scripted service."""

from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from tests.fake_snowpipe import URL

LEAST = {"accountUrl": URL, "database": "DB", "schema": "S", "table": "T", "channelPrefix": "ds"}
LEAST["partitions"] = "2"


def write_options(**more: str | None) -> WriteOptions:
    """Parse the least options with some changes; None leaves an option out."""
    return WriteOptions.parse({name: one for name, one in {**LEAST, **more}.items() if one is not None})
