"""Commits of a channel as a message queue of ``common-messaging``.

Airflow imports this module when it searches for queues; ``common-messaging`` itself does so only where it is
installed (``pip install airflow-provider-snowpipe[messaging]``, Airflow 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

from airflow_provider_snowpipe.assets.uri import SCHEME

if TYPE_CHECKING:
    from airflow.triggers.base import BaseEventTrigger

try:
    from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
except ImportError as error:
    raise AirflowOptionalProviderFeatureException(
        "the queue 'snowpipe' needs apache-airflow-providers-common-messaging: install "
        "airflow-provider-snowpipe[messaging]"
    ) from error


class SnowpipeMessageQueueProvider(BaseMessageQueueProvider):
    """Serve ``MessageQueueTrigger(scheme="snowpipe", table=…)`` with :class:`SnowpipeOffsetTrigger`.

    All arguments of the trigger can be given.
    """

    scheme = SCHEME

    def trigger_class(self) -> type[BaseEventTrigger]:
        """The trigger that watches the commits."""
        from airflow_provider_snowpipe.triggers.offset import SnowpipeOffsetTrigger

        return SnowpipeOffsetTrigger
