"""The message queue, with ``common-messaging`` and without."""

import pytest

import tests.airflow_connections  # noqa: F401  gives Airflow a home before it is imported
from airflow_provider_snowpipe.get_provider_info import get_provider_info

PATH = "airflow_provider_snowpipe.queues.snowpipe.SnowpipeMessageQueueProvider"


def test_a_message_queue_trigger_is_stored_as_ours():
    assert get_provider_info()["queues"] == [PATH]
    pytest.importorskip("airflow.providers.common.messaging", reason="the extra 'messaging'")
    from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger

    given = {"table": "T", "channel": "c", "every_rows": 100}
    path, arguments = MessageQueueTrigger(scheme="snowpipe", **given).serialize()
    assert path == "airflow_provider_snowpipe.triggers.offset.SnowpipeOffsetTrigger"
    assert arguments | given == arguments
