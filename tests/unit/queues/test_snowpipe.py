"""The message queue, with ``common-messaging`` and without."""

import subprocess
import sys

import pytest

import tests.airflow_connections  # noqa: F401  gives Airflow a home before it is imported
from airflow_provider_snowpipe.get_provider_info import get_provider_info
from tests.airflow_version import AIRFLOW

PATH = "airflow_provider_snowpipe.queues.snowpipe.SnowpipeMessageQueueProvider"
WITHOUT = """
import logging, sys
logging.basicConfig(level=logging.INFO)
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("airflow.providers.common.messaging.providers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from airflow.providers_manager import ProvidersManager
print([name for name in ProvidersManager().queue_class_names if "snowpipe" in name])
"""


def test_is_in_the_providers_metadata():
    assert get_provider_info()["queues"] == [PATH]


@pytest.mark.skipif(AIRFLOW < (3, 0), reason="Airflow 2 has no message queues")
def test_airflow_works_without_common_messaging():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=600)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert "Traceback" not in done.stderr


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
