"""What a pipeline of dlt does, against the service that the environment names; the argument is its folder.

Needs ``dlt[snowflake]``, Parquet and the variables of ``snowpipe-local env``. Prints the version of dlt.
"""

import datetime as dt
import os
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dlt

_ADDRESS = urlsplit(os.environ["SNOWPIPE_LOCAL_URL"])
_DESTINATION = dlt.destinations.snowflake(
    credentials={
        "database": "LOCAL",
        "username": os.environ["SNOWPIPE_LOCAL_USER"],
        "password": Path(os.environ["SNOWPIPE_LOCAL_PASSWORD_FILE"]).read_text().strip(),
        "host": os.environ["SNOWPIPE_LOCAL_ACCOUNT"],
        "query": {"host": str(_ADDRESS.hostname), "port": str(_ADDRESS.port)},
    }
)


def orders(*numbers: int, name: str = "a") -> list[dict[str, Any]]:
    """Return rows with nested lists, which become a table of their own."""
    at = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    return [
        {"id": n, "name": f"{name}{n}", "price": Decimal("1.25"), "at": at, "lines": [{"sku": "x"}] * n}
        for n in numbers
    ]


def load(rows: list[dict[str, Any]], pipeline: dlt.Pipeline, **how: Any) -> None:
    """Load rows; no job of the load may have failed."""
    pipeline.run(rows, **how).raise_on_failed_jobs()


for file_format in ("jsonl", "parquet", "csv"):
    pipeline = dlt.pipeline(
        f"shop_{file_format}", pipelines_dir=sys.argv[1], destination=_DESTINATION,
        dataset_name=f"dlt_{file_format}",
    )  # fmt: skip
    how: dict[str, Any] = {"table_name": "orders", "loader_file_format": file_format}
    load(orders(1, 2), pipeline, write_disposition="append", **how)
    load(orders(2, 3), pipeline, write_disposition="append", **how)

    def read(statement: str, pipeline: dlt.Pipeline = pipeline) -> list[tuple[Any, ...]]:
        """Return the rows of a query in the pipeline's schema."""
        with pipeline.sql_client() as client:
            return [tuple(row) for row in client.execute_sql(statement)]

    names = "SELECT id, name FROM orders ORDER BY id, name"
    assert read(names) == [(1, "a1"), (2, "a2"), (2, "a2"), (3, "a3")]
    assert read("SELECT count(*) FROM orders__lines") == [(8,)]
    load(orders(1, 2), pipeline, write_disposition="replace", **how)
    assert read(names) == [(1, "a1"), (2, "a2")]
    merged: dict[str, Any] = {**how, "table_name": "merged", "primary_key": "id"}
    for strategy in ("delete-insert", "upsert"):
        merged["write_disposition"] = {"disposition": "merge", "strategy": strategy}
        merged["table_name"] = f"merged_{strategy.partition('-')[0]}"
        load(orders(1, 2), pipeline, **merged)
        load(orders(2, 3, name="b"), pipeline, **merged)
        changed = f"SELECT id, name FROM {merged['table_name']} ORDER BY id"
        assert read(changed) == [(1, "a1"), (2, "b2"), (3, "b3")]
        assert read(f"SELECT count(*) FROM {merged['table_name']}__lines") == [(6,)]
    assert read("SELECT DISTINCT price, at FROM orders")[0][0] == Decimal("1.25")
print(dlt.__version__)
