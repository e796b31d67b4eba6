"""The SQL of file pipes, and what is refused before any of it is sent."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any

import pytest

from airflow_provider_snowpipe.bulk.copy import CopyInto, CopyOptions
from airflow_provider_snowpipe.bulk.file_pipe_admin import (
    PIPE_STATUS,
    FilePipeAdmin,
    PipeChange,
    PipeDefinition,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName

PIPE = PipeName("DB", "S", 'a "pipe"')
QUOTED = '"DB"."S"."a ""pipe"""'


def copy(location: str = "@S/in", **options: Any) -> CopyInto:
    return CopyInto(("DB", "S", "T"), location, CopyOptions(**options))


def test_a_pipe_is_its_options_and_its_copy() -> None:
    definition = PipeDefinition(
        copy(on_error="SKIP_FILE", pattern=".*[.]csv"),
        auto_ingest=True,
        integration="it's",
        aws_sns_topic="arn:topic",
        error_integration="ERRORS",
        comment="c",
    )

    assert definition.create(PIPE) == (
        f"CREATE PIPE {QUOTED} AUTO_INGEST = TRUE ERROR_INTEGRATION = ERRORS AWS_SNS_TOPIC = 'arn:topic' "
        "INTEGRATION = 'it''s' COMMENT = 'c' AS COPY INTO \"DB\".\"S\".\"T\" FROM '@S/in' "
        "PATTERN = '.*[.]csv' ON_ERROR = SKIP_FILE"
    )
    assert definition.create(PIPE, replace=True).startswith("CREATE OR REPLACE PIPE ")


@pytest.mark.parametrize(
    "option",
    [
        {"on_error": "ABORT_STATEMENT"},
        {"size_limit": 1},
        {"purge": True},
        {"force": True},
        {"return_failed_only": True},
    ],
    ids=lambda option: next(iter(option)),
)
def test_options_that_no_pipe_has_are_refused_by_name(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"options has {next(iter(option))}="):
        PipeDefinition(copy(**option))


def test_a_users_own_stage_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'@~'"):
        PipeDefinition(copy("@~/in"))


def test_events_need_auto_ingest() -> None:
    with pytest.raises(ConfigurationError, match="auto_ingest=True"):
        PipeDefinition(copy(), integration="EVENTS")


def rehearsed(state: str = "RUNNING") -> FilePipeAdmin:
    def run(statement: str, values: Sequence[str] | None) -> list[dict[str, Any]]:
        if statement == PIPE_STATUS:
            return [{"status": json.dumps({"executionState": state})}]
        assert statement.startswith("DESCRIBE PIPE")
        return [{"definition": "COPY INTO T FROM @S", "notification_channel": None}]

    return FilePipeAdmin(run, PIPE, is_rehearsal=True)


def test_pausing_resuming_and_dropping_name_the_pipe() -> None:
    paused = f"ALTER PIPE {QUOTED} SET PIPE_EXECUTION_PAUSED ="
    assert rehearsed().pause() == PipeChange(True, (f"{paused} TRUE",))
    assert rehearsed("PAUSED").resume() == PipeChange(True, (f"{paused} FALSE",))
    assert rehearsed().drop() == PipeChange(True, (f"DROP PIPE IF EXISTS {QUOTED}",))


def test_each_change_is_a_statement_and_an_empty_comment_removes_it() -> None:
    assert rehearsed().alter(comment="", error_integration="my errors").statements == (
        f"ALTER PIPE {QUOTED} UNSET COMMENT",
        f'ALTER PIPE {QUOTED} SET ERROR_INTEGRATION = "my errors"',
    )


def refreshed(prefix: str | None, since: dt.datetime) -> str:
    (statement,) = rehearsed().refresh(prefix=prefix, modified_after=since, on_nothing="fail").statements
    return statement


def test_a_refresh_is_narrowed_by_prefix_and_timestamp() -> None:
    since = (dt.datetime.now(dt.UTC) - dt.timedelta(days=1)).replace(microsecond=7_000)

    assert refreshed("it's/", since) == (
        f"ALTER PIPE {QUOTED} REFRESH PREFIX = 'it''s/' "
        f"MODIFIED_AFTER = '{since:%Y-%m-%dT%H:%M:%S}.007+00:00'"
    )


@pytest.mark.parametrize(
    ("days", "is_refused"), [(6.99, False), (7.01, True)], ids=["within-7-days", "beyond"]
)
def test_a_refresh_reaches_back_seven_days(days: float, is_refused: bool) -> None:
    since = dt.datetime.now(dt.UTC) - dt.timedelta(days=days)
    if not is_refused:
        assert "MODIFIED_AFTER" in refreshed(None, since)
        return
    with pytest.raises(ConfigurationError, match=r"7 days ago.*last 7 days only.*COPY INTO"):
        refreshed(None, since)
