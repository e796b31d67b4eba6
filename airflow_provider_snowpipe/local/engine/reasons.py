"""Why a row cannot be stored: branches of the CASE that names the reason, without the value."""

from __future__ import annotations

from airflow_provider_snowpipe.local.engine.conversions import too_long
from airflow_provider_snowpipe.local.identifiers import literal, quote
from airflow_provider_snowpipe.local.tables import Column

NOT_AN_OBJECT = "WHEN j IS NULL THEN 'the row is not a JSON object'"


def column_reasons(column: Column, value: str, *, failed: str, why: str) -> str:
    """Return the branches for one column: not converted, too long, absent but required.

    :param value: expression of the converted value.
    :param failed: condition under which the conversion failed.
    :param why: what is said then.
    """
    name = f"column {quote(column.name)}"
    parts = [f"WHEN {failed} THEN {literal(f'{name}: {why}')}"]
    longer = too_long(column, value)
    if longer is not None:
        parts.append(f"WHEN {longer} THEN {literal(f'{name}: the value is longer than {column.type}')}")
    if not column.nullable:
        parts.append(required(column, f"{value} IS NULL"))
    return " ".join(parts)


def required(column: Column, missing: str = "true") -> str:
    """Return the branch for a column that must have a value.

    :param missing: condition under which it has none.
    """
    return f"WHEN {missing} THEN {literal(f'column {quote(column.name)}: a value is required (NOT NULL)')}"
