"""The lag notifier against a real local service: in a worker's way, and in the triggerer's."""

import asyncio
import logging

import pytest
from airflow.providers.common.compat.sdk import DAG, BaseNotifier

from airflow_provider_snowpipe.notifications.lag import SnowpipeLagNotifier
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.airflow_version import AIRFLOW
from tests.local_connection import commit


def in_a_worker(notifier, context):
    notifier({"dag": DAG("d", schedule=None), **context})


def in_the_triggerer(notifier, context):
    async def run():
        notifier.context = context
        await notifier

    asyncio.run(run())


awaited = pytest.mark.skipif(AIRFLOW < (3, 1), reason="a triggerer awaits notifiers since Airflow 3.1")
both_ways = pytest.mark.parametrize(
    "call", [pytest.param(in_a_worker, id="sync"), pytest.param(in_the_triggerer, id="async", marks=awaited)]
)


class Received(BaseNotifier):
    """Keeps what it is given, as a messenger's notifier would send it."""

    template_fields = ("text",)
    texts = []  # noqa: RUF012 - one list for all, as a messenger has

    def __init__(self, text, **kwargs):
        super().__init__(**kwargs)
        self.text = text

    def notify(self, context):
        self.texts.append(self.text)

    async def async_notify(self, context):
        self.notify(context)


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


def reported(caplog):
    (record,) = [one for one in caplog.records if one.getMessage().startswith("pipe LOCAL.PUBLIC")]
    return record.getMessage(), record.levelno


@both_ways
def test_a_channel_before_its_target_is_late_and_named_first(conn_id, two_channels, caplog, call):
    later = {"token": "{{ dag_run.conf.until }}", "offset_format": "integer"}
    where = {"table": "{{ dag_run.conf.table }}", "snowflake_conn_id": conn_id}
    targets = {"targets": {"a": "1", "b": later, "missing": "5"}, "offset_format": "integer"}
    with caplog.at_level(logging.INFO):
        notifier = SnowpipeLagNotifier(max_channels=2, **where, **targets)
        call(notifier, {"dag_run": {"conf": {"table": two_channels, "until": 10}}})
    text, level = reported(caplog)
    first, b, missing, more = text.splitlines()
    assert (level, more) == (logging.WARNING, "  … and 1 more")
    assert first.endswith("3 channels, 2 of 3 with a target late")
    assert b.startswith("  'b' committed 7 of 10 (late), ")
    assert missing.startswith("  'missing' committed NULL of 5 (late), 0 rows")
    assert missing.endswith("status ERR_CHANNEL_DOES_NOT_EXIST_OR_NOT_AUTHORIZED")


@both_ways
@pytest.mark.parametrize("form", ["path", "instance"])
def test_another_notifier_gets_the_report_in_its_templates(conn_id, two_channels, call, form):
    text = "late? {{ lag_report }}"
    passing_on = {"notifier": f"{__name__}.Received", "notifier_arguments": {"text": text}}
    if form == "instance":
        passing_on = {"notifier": Received(text)}
    Received.texts.clear()
    where = {"table": two_channels, "snowflake_conn_id": conn_id}
    notifier = SnowpipeLagNotifier(channels="{{ names | tojson }}", **where, **passing_on)
    for _ in range(2):
        call(notifier, {"names": ["b"]})
    assert len(Received.texts) == 2
    assert all(text.startswith("late? pipe LOCAL.PUBLIC.") for text in Received.texts)
    assert all("'b' committed 7" in text and "'a'" not in text for text in Received.texts)


@both_ways
def test_a_table_that_is_not_there_is_reported_and_passed_on(conn_id, caplog, call):
    Received.texts.clear()
    where = {"table": "NOT_YET", "snowflake_conn_id": conn_id}
    where |= {"targets": {"a": "f:1"}, "offset_format": "file:line"}
    with caplog.at_level(logging.INFO):
        call(SnowpipeLagNotifier(notifier=Received("{{ lag_report }}"), **where), {})
    text, level = reported(caplog)
    assert text.startswith("pipe LOCAL.PUBLIC.NOT_YET-STREAMING: its channels are not known: ")
    assert ("does not exist" in text, level, Received.texts) == (True, logging.WARNING, [text])


def test_wrong_arguments_are_refused_when_the_dag_is_parsed():
    for arguments, message in [
        ({"pipe": "P"}, "drop one"),
        ({"max_channels": 0}, "max_channels is 0"),
        ({"offset_format": "nope"}, "nope"),
        ({"notifier_arguments": {"text": "x"}}, "notifier_arguments"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            SnowpipeLagNotifier(table="T", **arguments)
