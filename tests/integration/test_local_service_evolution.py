"""Schema evolution: rows add columns and drop NOT NULL; what cannot evolve invalidates its channel."""

from __future__ import annotations

import json

import pytest

from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.errors import ChannelError
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from tests.local_service import LocalService


def _send(service: LocalService, name: str, *rows: object) -> str:
    with service.client("EVOLVING") as client:
        channel = Channel.open(client, name, IntegerOffset)
        body = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        channel.append(body, IntegerOffset(0), IntegerOffset(len(rows) - 1), rows=len(rows))
        channel.wait_for_commit(timeout=30)
        status = client.channel_statuses([name])[name]
        assert status.rows_error_count == 0
        channel.close()
        return status.code


def test_new_keys_become_columns_of_inferred_types(local_service: LocalService) -> None:
    local_service.sql("CREATE OR REPLACE TABLE evolving (id INT) ENABLE_SCHEMA_EVOLUTION = TRUE")
    _send(
        local_service,
        "c",
        {"id": 1, "n": 5, "f": 1, "b": True, "d": "2026-01-02", "t": "2026-01-02T03:04:05", "nothing": None},
        {"id": 2, "f": 1.5, "s": "x", "v": {"k": 1}, "a": [1], "z": "2026-01-02T03:04:05Z", "mixed": 1},
        {"id": 3, "mixed": "one", "n": -1},
    )
    kinds = {row["name"]: row["type"] for row in local_service.sql("DESCRIBE TABLE evolving")}
    assert kinds == {
        "ID": "NUMBER(38,0)",
        "N": "NUMBER(38,0)",
        "F": "FLOAT",
        "B": "BOOLEAN",
        "D": "DATE",
        "T": "TIMESTAMP_NTZ(9)",
        "NOTHING": "VARCHAR(16777216)",
        "S": "VARCHAR(16777216)",
        "V": "VARIANT",
        "A": "VARIANT",
        "Z": "TIMESTAMP_TZ(9)",
        "MIXED": "VARCHAR(16777216)",
    }
    assert local_service.sql("SELECT id, n, f, v, mixed FROM evolving ORDER BY id") == [
        {"ID": 1, "N": 5, "F": 1.0, "V": None, "MIXED": None},
        {"ID": 2, "N": None, "F": 1.5, "V": {"k": 1}, "MIXED": "1"},
        {"ID": 3, "N": -1, "F": None, "V": None, "MIXED": "one"},
    ]


def test_a_missing_value_drops_not_null(local_service: LocalService) -> None:
    local_service.sql(
        "CREATE OR REPLACE TABLE evolving (id INT NOT NULL, a INT NOT NULL, d INT NOT NULL DEFAULT 7, "
        "k INT NOT NULL) ENABLE_SCHEMA_EVOLUTION = TRUE"
    )
    _send(local_service, "c", {"id": 1, "a": 1, "k": 1}, {"id": None, "k": 2})
    assert local_service.sql("SELECT * FROM evolving ORDER BY k") == [
        {"ID": 1, "A": 1, "D": 7, "K": 1},
        {"ID": None, "A": None, "D": 7, "K": 2},
    ]
    nullable = {row["name"]: row["null?"] for row in local_service.sql("DESCRIBE TABLE evolving")}
    assert nullable == {"ID": "Y", "A": "Y", "D": "N", "K": "N"}


@pytest.mark.parametrize("row", [{f"c{n}": n for n in range(101)}, {"": 1}, {"x" * 256: 1}])
def test_an_evolution_that_fails_invalidates_the_channel_and_moves_no_token(
    local_service: LocalService, row: object
) -> None:
    local_service.sql("CREATE OR REPLACE TABLE evolving (id INT) ENABLE_SCHEMA_EVOLUTION = TRUE")
    _send(local_service, "good", {"id": 1})
    with pytest.raises(ChannelError):
        _send(local_service, "bad", row)
    with local_service.client("EVOLVING") as client:
        status = client.channel_statuses(["bad"])["bad"]
    assert (status.code, status.committed) == ("ERR_CHANNEL_MUST_BE_REOPENED", None)
    assert _send(local_service, "bad", {"id": 2}) == "SUCCESS"
    assert local_service.sql("SELECT count(*) n FROM evolving") == [{"N": 2}]


def test_without_the_option_unknown_keys_are_ignored_and_it_can_be_switched_on(
    local_service: LocalService,
) -> None:
    local_service.sql("CREATE OR REPLACE TABLE evolving (id INT)")
    _send(local_service, "c", {"id": 1, "x": 1})
    local_service.sql("ALTER TABLE evolving SET ENABLE_SCHEMA_EVOLUTION = TRUE")
    _send(local_service, "d", {"id": 2, "x": 2})
    assert local_service.sql("SELECT * FROM evolving ORDER BY id") == [
        {"ID": 1, "X": None},
        {"ID": 2, "X": 2},
    ]
