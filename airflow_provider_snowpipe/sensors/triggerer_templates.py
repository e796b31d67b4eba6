"""Arguments of a sensor that starts in the triggerer, where their templates are rendered as well."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow.providers.common.compat.sdk import XComArg
from airflow.triggers.base import BaseTrigger

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

_TEMPLATE_MARKS = ("{{", "{%")
_PULL, _MAP_INDEX = "xcom_pull(", "map_indexes"


def can_start_there(arguments: Iterable[Any]) -> bool:
    """True unless there are templates and the triggerer renders none, as before Airflow 3.3.

    :param arguments: the trigger's arguments
    """
    return hasattr(BaseTrigger, "render_template_fields") or not any(
        mark in str(argument) for argument in arguments for mark in _TEMPLATE_MARKS
    )


def rendered_in_triggerer(name: str, value: Any) -> Any:
    """Write an argument such that the triggerer can render it.

    A task's XCom becomes a template whose text is JSON. It has to name the map index: the triggerer of
    Airflow 3.3.2 leaves ``xcom_pull`` without one unanswered, and the trigger would wait for ever.

    :param name: the argument, for errors
    :param value: its value
    :raises ConfigurationError: if the triggerer could not render it
    """
    if callable(value):
        raise ConfigurationError(
            f"{name} is a function, which does not reach the triggerer: leave start_from_trigger off, or "
            "give a mapping or a template"
        )
    if isinstance(value, XComArg):
        text = str(value)
        if not (text.startswith("{{ task_instance.xcom_pull(") and text.endswith(") }}")):
            raise ConfigurationError(
                f"{name} is {text}: a sensor with start_from_trigger=True takes a mapping, a template, or a "
                'plain XCom such as load.output["targets"], nothing made of one'
            )
        return f"{text.removesuffix(') }}')}, {_MAP_INDEX}=-1) | tojson }}}}"
    if isinstance(value, str) and _PULL in value and _MAP_INDEX not in value:
        raise ConfigurationError(
            f"{name} is the template {value!r}: with start_from_trigger=True write xcom_pull with "
            f"{_MAP_INDEX}=-1, without which the triggerer does not answer it"
        )
    return value
