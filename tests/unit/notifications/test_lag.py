"""The lag notifier against a real local service: in a worker's way, and in the triggerer's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, BaseNotifier

from airflow_provider_snowpipe.notifications.lag import SnowpipeLagNotifier
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError
from tests.airflow_version import AIRFLOW
from tests.local_connection import commit

Call = Callable[[SnowpipeLagNotifier, dict[str, Any]], None]


def in_a_worker(notifier: SnowpipeLagNotifier, context: dict[str, Any]) -> None:
    notifier({"dag": DAG("d", schedule=None), **context})


def in_the_triggerer(notifier: SnowpipeLagNotifier, context: dict[str, Any]) -> None:
    async def run() -> None:
        notifier.context = context  # type: ignore[assignment]
        await notifier

    asyncio.run(run())


awaited = pytest.mark.skipif(AIRFLOW < (3, 1), reason="a triggerer awaits notifiers since Airflow 3.1")
both_ways = pytest.mark.parametrize(
    "call", [pytest.param(in_a_worker, id="sync"), pytest.param(in_the_triggerer, id="async", marks=awaited)]
)


class Received(BaseNotifier):
    """Keeps what it is given, as a messenger's notifier would send it."""

    template_fields = ("text",)
    texts: list[str] = []  # noqa: RUF012 - one list for all, as a messenger has

    def __init__(self, text: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.text = text

    def notify(self, context: Any) -> None:
        self.texts.append(self.text)

    async def async_notify(self, context: Any) -> None:
        self.texts.append(self.text)


@pytest.fixture
def two_channels(local_service, table):
    """A table whose channel ``a`` has committed 1 and ``b`` 7."""
    commit(local_service, table, "a", ["0", "1"])
    commit(local_service, table, "b", ["7"])
    return table


@pytest.fixture(autouse=True)
def _standard_logger(monkeypatch):
    """Airflow 3 hands out a logger that pytest does not capture."""
    monkeypatch.setattr(SnowpipeLagNotifier, "log", logging.getLogger("lag"))


def reported(caplog: pytest.LogCaptureFixture) -> tuple[str, int]:
    (record,) = [one for one in caplog.records if one.getMessage().startswith("pipe LOCAL.PUBLIC")]
    return record.getMessage(), record.levelno


@both_ways
def test_all_channels_are_listed_with_their_committed_tokens(conn_id, two_channels, caplog, call):
    with caplog.at_level(logging.INFO):
        call(SnowpipeLagNotifier(table=two_channels, snowflake_conn_id=conn_id), {})
    text, level = reported(caplog)
    assert level == logging.INFO
    first, a, b = text.splitlines()
    assert first == f"pipe LOCAL.PUBLIC.{two_channels}-STREAMING: 2 channel(s)"
    assert a.startswith("  'a' committed 1, 2 rows, 0 rejected, ")
    assert b.startswith("  'b' committed 7, 1 rows, 0 rejected, ")


@both_ways
def test_a_channel_before_its_target_is_late_and_named_first(conn_id, two_channels, caplog, call):
    notifier = SnowpipeLagNotifier(
        table="{{ dag_run.conf.table }}",
        snowflake_conn_id=conn_id,
        targets={"a": "1", "b": "{{ dag_run.conf.until }}", "missing": "5"},
        offset_format="integer",
        max_channels=2,
    )
    with caplog.at_level(logging.INFO):
        call(notifier, {"dag_run": {"conf": {"table": two_channels, "until": 10}}})
    text, level = reported(caplog)
    assert level == logging.WARNING
    first, b, missing, more = text.splitlines()
    assert first.endswith("3 channel(s), 2 of 3 with a target late")
    assert b.startswith("  'b' committed 7 of 10 (late), ")
    assert missing.startswith("  'missing' committed NULL of 5 (late), 0 rows")
    assert missing.endswith("status ERR_CHANNEL_DOES_NOT_EXIST_OR_NOT_AUTHORIZED")
    assert more == "  … and 1 more"


@both_ways
def test_targets_of_a_load_bring_their_format(conn_id, two_channels, caplog, call):
    targets = {"b": {"token": "10", "offset_format": "integer"}}
    with caplog.at_level(logging.INFO):
        call(SnowpipeLagNotifier(table=two_channels, snowflake_conn_id=conn_id, targets=targets), {})
    assert "'b' committed 7 of 10 (late)" in reported(caplog)[0]


@both_ways
def test_channels_may_be_the_text_that_a_template_renders(conn_id, two_channels, caplog, call):
    notifier = SnowpipeLagNotifier(
        table=two_channels, snowflake_conn_id=conn_id, channels="{{ names | tojson }}"
    )
    with caplog.at_level(logging.INFO):
        call(notifier, {"names": ["b"]})
    assert reported(caplog)[0].splitlines()[1].startswith("  'b' committed 7, ")


@both_ways
@pytest.mark.parametrize("form", ["path", "instance"])
def test_another_notifier_gets_the_report_in_its_templates(conn_id, two_channels, call, form):
    text = "late? {{ lag_report }}"
    passing_on: dict[str, Any] = (
        {"notifier": Received(text)}
        if form == "instance"
        else {"notifier": f"{__name__}.Received", "notifier_arguments": {"text": text}}
    )
    Received.texts.clear()
    notifier = SnowpipeLagNotifier(
        table=two_channels, snowflake_conn_id=conn_id, channels=["b"], **passing_on
    )
    for _ in range(2):
        call(notifier, {})
    assert len(Received.texts) == 2
    assert all(text.startswith("late? pipe LOCAL.PUBLIC.") for text in Received.texts)
    assert all("'b' committed 7" in text and "'a'" not in text for text in Received.texts)


@both_ways
def test_a_pipe_without_channels_is_reported_as_that(conn_id, table, caplog, call):
    with caplog.at_level(logging.INFO):
        call(SnowpipeLagNotifier(table=table, snowflake_conn_id=conn_id, channels=[]), {})
    assert reported(caplog)[0].endswith(": 0 channel(s)")


@both_ways
def test_a_table_that_is_not_there_is_reported_and_passed_on(conn_id, caplog, call):
    Received.texts.clear()
    notifier = SnowpipeLagNotifier(
        table="NOT_YET",
        snowflake_conn_id=conn_id,
        targets={"a": "f:1"},
        offset_format="file:line",
        notifier=Received("{{ lag_report }}"),
    )
    with caplog.at_level(logging.INFO):
        call(notifier, {})
    text, level = reported(caplog)
    assert level == logging.WARNING
    assert text.startswith("pipe LOCAL.PUBLIC.NOT_YET-STREAMING: its channels are not known: ")
    assert "does not exist" in text
    assert Received.texts == [text]


@pytest.mark.skipif(AIRFLOW < (3, 0), reason="Airflow 2 logs what a notifier raises, and goes on")
@both_ways
def test_a_token_of_another_format_is_an_error_that_names_the_channel(conn_id, two_channels, call):
    notifier = SnowpipeLagNotifier(
        table=two_channels, snowflake_conn_id=conn_id, targets={"a": "f:1"}, offset_format="file:line"
    )
    with pytest.raises(SnowpipeError, match="'a'"):
        call(notifier, {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": "T", "pipe": "P"}, "drop one"),
        ({"table": "T", "max_channels": 0}, "max_channels is 0"),
        ({"table": "T", "offset_format": "nope"}, "nope"),
        ({"table": "T", "notifier_arguments": {"text": "x"}}, "notifier_arguments"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_arguments_are_refused_when_the_dag_is_parsed(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        SnowpipeLagNotifier(**arguments)


def test_a_deadline_takes_it_as_its_callback():
    sdk = pytest.importorskip("airflow.sdk", reason="deadlines need Airflow 3")
    if not hasattr(sdk, "AsyncCallback"):
        pytest.skip("deadlines need Airflow 3.2")
    callback = sdk.AsyncCallback(SnowpipeLagNotifier, kwargs={"table": "T"})
    assert callback.path == "airflow_provider_snowpipe.notifications.lag.SnowpipeLagNotifier"
