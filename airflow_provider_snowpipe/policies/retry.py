"""The retry policy for tasks that talk to Snowpipe Streaming; needs Airflow 3.3."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, Worth, advise

try:
    from airflow.providers.common.compat.sdk import RetryDecision, RetryPolicy
except ImportError:
    raise AirflowOptionalProviderFeatureException(
        "SnowpipeRetryPolicy needs Airflow 3.3 or later; leave retry_policy out before that"
    ) from None

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class SnowpipeRetryPolicy(RetryPolicy):
    """Retry what another try can fix, fail at once on what it cannot, and wait as long as the service asks.

    Errors of other systems keep the task's own ``retries`` and ``retry_delay``.

    :param longest_delay: seconds; the service is not obeyed beyond that
    """

    def __init__(self, longest_delay: float = 3600.0) -> None:
        is_number = isinstance(longest_delay, int | float) and not isinstance(longest_delay, bool)
        if not (is_number and longest_delay > 0):
            raise ConfigurationError(f"longest_delay is {longest_delay!r}: give seconds above 0")
        self.longest_delay = longest_delay

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide about one failure.

        :param exception: what ended the task
        :param try_number: the try that failed, counted from 1
        :param max_tries: how many there are
        """
        advice = advise(exception)
        if advice.worth is Worth.FAIL:
            return RetryDecision.fail(reason=advice.reason)
        if advice.worth is Worth.UNKNOWN:
            return RetryDecision.default()
        return RetryDecision.retry(self._delay(advice.delay_seconds, context), reason=advice.reason)

    def serialize(self) -> dict[str, Any]:
        """The arguments, as JSON holds them."""
        return {"longest_delay": self.longest_delay}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        """Make the policy again."""
        return cls(**data)

    def _delay(self, seconds: float | None, context: Context | None) -> timedelta | None:
        """The asked delay, unless the task's own is longer; None for the task's own."""
        if seconds is None:
            return None
        asked = timedelta(seconds=min(seconds, self.longest_delay))
        own = getattr((context or {}).get("task"), "retry_delay", None)
        return None if isinstance(own, timedelta) and own >= asked else asked
