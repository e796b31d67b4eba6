"""SQL of custom pipes: every row is transformed by itself, so that one bad row spoils no other."""

# ruff: noqa: S608 - names go through identifiers.quote, values are bound.

from __future__ import annotations

from airflow_provider_snowpipe.local.engine.coerce import insert
from airflow_provider_snowpipe.local.engine.definition import PipeDefinition
from airflow_provider_snowpipe.local.engine.reasons import NOT_AN_OBJECT, column_reasons, required
from airflow_provider_snowpipe.local.tables import Column, Table


def transforming_stage(table: Table, definition: PipeDefinition, source: str, target: str) -> str:
    """Return a statement that transforms every line and marks the ones that cannot be stored.

    TRY around a struct tells an expression that failed (no struct) from one that is NULL.

    :param source: name of the relation with the columns ``i`` and ``l``.
    :param target: temporary table to create: ``i``, ``t0``..., ``reason`` (NULL for good rows), ``payload``.
    """
    columns = _columns(table, definition)
    values = "".join(
        f", TRY(struct_pack(v := {expression})) AS t{index}"
        for index, expression in enumerate(definition.expressions)
    )
    reasons = [NOT_AN_OBJECT]
    reasons += [
        column_reasons(
            column,
            f"t{index}.v",
            failed=f"t{index} IS NULL",
            why=f"the expression of the pipe failed or cannot be converted to {column.type}",
        )
        for index, column in enumerate(columns)
    ]
    reasons += [
        required(column)
        for column in table.columns
        if not column.nullable and column.default is None and column not in columns
    ]
    return (
        f"CREATE OR REPLACE TEMPORARY TABLE {target} AS "
        f"SELECT *, CASE {' '.join(reasons)} END AS reason, "
        f"CASE WHEN reason IS NOT NULL THEN l END AS payload FROM "
        f"(SELECT i, l, j{values} FROM "
        f"(SELECT i, l, CASE WHEN json_valid(l) THEN CASE WHEN json_type(l) = 'OBJECT' THEN l::JSON END END "
        f"AS j FROM {source} OFFSET 0) OFFSET 0)"
    )


def transformed_insert(table: Table, definition: PipeDefinition, staged: str) -> str:
    """Return the INSERT of the good rows that :func:`transforming_stage` left in its table."""
    values = [f"t{index}.v" for index in range(len(definition.columns))]
    good = f"{staged} WHERE reason IS NULL"
    clusters = definition.cluster_at_ingest_time
    return insert(table, _columns(table, definition), values, good, clusters=clusters)


def _columns(table: Table, definition: PipeDefinition) -> list[Column]:
    known = {column.name: column for column in table.columns}
    return [known[name] for name in definition.columns]
