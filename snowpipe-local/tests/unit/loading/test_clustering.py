"""Clustering keys: which there are, and what they keep."""

import dataclasses

import duckdb
import pytest
from tests.local_catalog import LocalCatalog


def test_the_key_is_shown_and_one_that_no_row_can_have_is_refused(local: LocalCatalog) -> None:
    local.sql('CREATE TABLE keyed (id INT, "At" TIMESTAMP_NTZ) CLUSTER BY (id, TO_DATE("At"))')
    local.sql("CREATE TABLE again (id INT) CLUSTER BY LINEAR(id)")
    shown = [row["cluster_by"] for row in local.sql("SHOW TABLES")]
    assert shown == ["LINEAR(ID)", 'LINEAR(ID, TO_DATE("At"))']
    for key, reason in (
        ("nope", "invalid identifier 'NOPE'"),
        ("count(*)", "CLUSTER BY"),
        ("(SELECT 1)", "CLUSTER BY"),
        ("no_such_function(id)", "NO_SUCH_FUNCTION"),
    ):
        error = local.refused(f"CREATE TABLE refused (id INT) CLUSTER BY ({key})")
        assert reason.upper() in error.message.upper(), key


def test_a_column_of_the_key_cannot_be_lost(local: LocalCatalog) -> None:
    local.sql("CREATE TABLE t (k INT, other INT) CLUSTER BY (k)")
    table = local.database.tables.find("PUBLIC", "T")
    assert table is not None
    kept = dataclasses.replace(table, columns=table.columns[1:])
    with pytest.raises(duckdb.BinderException):
        local.database.tables.change(kept, [f'ALTER TABLE {table.path} DROP COLUMN "K"'])
    assert local.database.tables.find("PUBLIC", "T") == table
