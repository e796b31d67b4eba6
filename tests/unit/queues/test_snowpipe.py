"""The message queue, with ``common-messaging`` and without."""

import pytest

import tests.airflow_connections  # noqa: F401  gives Airflow a home before it is imported
from airflow_provider_snowpipe.get_provider_info import get_provider_info

PATH = "airflow_provider_snowpipe.queues.snowpipe.SnowpipeMessageQueueProvider"


def test_is_in_the_providers_metadata():
    assert get_provider_info()["queues"] == [PATH]


class TestProvider:
    @pytest.fixture
    def provider(self):
        pytest.importorskip("airflow.providers.common.messaging", reason="the extra 'messaging'")
        from airflow_provider_snowpipe.queues.snowpipe import SnowpipeMessageQueueProvider

        return SnowpipeMessageQueueProvider()

    def test_serves_its_scheme_and_no_other(self, provider):
        assert provider.scheme_matches("snowpipe")
        assert not provider.scheme_matches("snowflake")

    @pytest.mark.usefixtures("provider")
    def test_a_message_queue_trigger_is_stored_as_ours(self):
        from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger

        path, arguments = MessageQueueTrigger(
            scheme="snowpipe", table="T", channel="c", every_rows=100
        ).serialize()

        assert path == "airflow_provider_snowpipe.triggers.offset.SnowpipeOffsetTrigger"
        assert (arguments["table"], arguments["channel"], arguments["every_rows"]) == ("T", "c", 100)
