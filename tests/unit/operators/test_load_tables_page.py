"""The how-to pages about tables: their tasks can be made, and their sources are what a plan takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider_snowpipe.sources import stream_values
from airflow_provider_snowpipe.spark.sources.registry import source_spec

_HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"
_TEXT = "\n".join((_HOW_TO / f"{page}.md").read_text() for page in ("load-tables", "load-lake-tables"))
_BLOCKS = re.findall(r"^```python\n(.*?)^```$", _TEXT, re.MULTILINE | re.DOTALL)
_IMPORT = (
    "from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator\n"
    "from airflow_provider_snowpipe.sources import TableSource\n"
)


@pytest.mark.parametrize("number", range(len(_BLOCKS)))
def test_source_of_each_snippet_is_what_a_plan_takes(number):
    names: dict[str, object] = {}
    exec(_IMPORT + _BLOCKS[number], names)  # noqa: S102  a page of this repository

    source = names["load"].source if "load" in names else names["source"]
    assert source_spec(stream_values(source)).kind in ("table", "delta", "iceberg")
