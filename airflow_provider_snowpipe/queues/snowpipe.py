"""Commits of a channel as a message queue of ``common-messaging``.

Airflow imports this module when it searches for queues; ``common-messaging`` itself does so only where it is
installed (``pip install airflow-provider-snowpipe[messaging]``, Airflow 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

from airflow_provider_snowpipe.assets.uri import SCHEME, TableAddress

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

    The older form ``MessageQueueTrigger(queue="snowpipe://<account>/<database>/<schema>/<table>[/<channel>]")``
    works as well. All arguments of the trigger can be given.
    """

    scheme = SCHEME

    def queue_matches(self, queue: str) -> bool:
        """True for a URI of the scheme ``snowpipe``.

        :param queue: the queue's URI
        """
        return queue.lower().startswith(f"{SCHEME}://")

    def trigger_class(self) -> type[BaseEventTrigger]:
        """The trigger that watches the commits."""
        from airflow_provider_snowpipe.triggers.offset import SnowpipeOffsetTrigger

        return SnowpipeOffsetTrigger

    def trigger_kwargs(self, queue: str, **kwargs: Any) -> dict[str, Any]:
        """The trigger's arguments in the URI.

        :param queue: the queue's URI
        :param kwargs: the arguments given beside it
        :raises ConfigurationError: if the URI has another form
        """
        address = TableAddress.parse(queue)
        found: dict[str, Any] = {
            "account": address.account,
            "database": address.database,
            "schema": address.schema,
            "channel": address.channel,
        }
        if "pipe" not in kwargs:
            found["table"] = address.table
        return {name: value for name, value in found.items() if name not in kwargs}
