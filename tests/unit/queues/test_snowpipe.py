"""The message queue, with ``common-messaging`` and without."""

import pytest

import tests.airflow_connections  # noqa: F401  gives Airflow a home before it is imported
from airflow_provider_snowpipe.get_provider_info import get_provider_info
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

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
        assert provider.queue_matches("snowpipe://org-acct/DB/S/T")
        assert not provider.queue_matches("kafka://localhost/topic")

    def test_reads_the_triggers_arguments_from_the_uri(self, provider):
        found = provider.trigger_kwargs("snowpipe://Org-Acct/DB/S/T/c%2F1", every_rows=5)

        assert found == {
            "account": "org-acct",
            "database": "DB",
            "schema": "S",
            "table": "T",
            "channel": "c/1",
        }

    def test_arguments_beside_the_uri_win(self, provider):
        found = provider.trigger_kwargs("snowpipe://a/DB/S/T/c", pipe="P", channel="d")

        assert "table" not in found
        assert "channel" not in found

    def test_refuses_a_uri_of_another_form(self, provider):
        with pytest.raises(ConfigurationError, match="after the account"):
            provider.trigger_kwargs("snowpipe://a/DB")

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    @pytest.mark.parametrize(
        "options",
        [{"scheme": "snowpipe", "table": "T", "channel": "c"}, {"queue": "snowpipe://a/DB/S/T/c"}],
        ids=["scheme", "queue"],
    )
    def test_a_message_queue_trigger_is_stored_as_ours(self, provider, options):
        from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger

        path, arguments = MessageQueueTrigger(**options, every_rows=100).serialize()

        assert path == "airflow_provider_snowpipe.triggers.offset.SnowpipeOffsetTrigger"
        assert (arguments["table"], arguments["channel"], arguments["every_rows"]) == ("T", "c", 100)
