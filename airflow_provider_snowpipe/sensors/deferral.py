"""What sensors that may be deferred have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    PokeReturnValue,
)

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class LookingSensor(Protocol):
    """A sensor whose look tells what it has found."""

    soft_fail: bool
    never_fail: bool

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""


def check_deferral(*, deferrable: bool, start_from_trigger: bool, end_from_trigger: bool) -> None:
    """Refuse a start or an end in the triggerer without a wait there.

    :param deferrable: the sensor waits in the triggerer
    :param start_from_trigger: it starts there
    :param end_from_trigger: it ends there
    :raises ConfigurationError: if one of the two is asked for without ``deferrable``
    """
    for name, wanted in (("start_from_trigger", start_from_trigger), ("end_from_trigger", end_from_trigger)):
        if wanted and not deferrable:
            raise ConfigurationError(f"{name} is True: it needs deferrable=True as well")


def first_look(sensor: LookingSensor, context: Context) -> PokeReturnValue:
    """Poke once before a deferral, with the meaning of ``soft_fail`` and ``never_fail`` in the mode ``poke``.

    :param sensor: the sensor
    :param context: the task's context
    :raises AirflowSkipException: if the look failed and the sensor skips then
    """
    try:
        return sensor.poke(context)
    except AirflowException as error:
        if sensor.never_fail or (sensor.soft_fail and isinstance(error, AirflowFailException)):
            raise AirflowSkipException(str(error)) from error
        raise
