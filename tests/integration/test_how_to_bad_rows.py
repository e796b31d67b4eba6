"""The page about rows that do not fit: each Python block is read as it is printed."""

import re
from pathlib import Path

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.streaming.row_gate import SCHEMA

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "handle-bad-rows.md"
_PUT_ASIDE, _MAKE = re.findall(r"^```python\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_operators_take_the_arguments_of_the_page() -> None:
    names: dict[str, object] = {}
    exec(_PUT_ASIDE, names)  # noqa: S102  our own page
    first = names["load"]
    exec(_MAKE, names)  # noqa: S102
    assert isinstance(first, SnowpipeStreamOperator)
    assert (first.on_error, first.dead_letter_path) == ("dead_letter", "/data/rejected/orders")
    made = names["load"]
    assert isinstance(made, SnowpipeStreamOperator)
    assert (made.create_table, made.evolve_columns) == ("if_missing", True)


def test_columns_of_the_files_are_those_of_the_page() -> None:
    table = _PAGE.read_text().partition("| column | value |")[2].partition("\n\n")[0]
    assert re.findall(r"`(\w+)`", re.sub(r"\|[^|]*\|$", "|", table, flags=re.MULTILINE)) == SCHEMA.names
