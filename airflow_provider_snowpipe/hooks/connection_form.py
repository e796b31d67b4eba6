"""The connection's form before Airflow 3.2, made of the metadata that a later Airflow reads by itself."""

from __future__ import annotations

from typing import Any

from airflow_provider_snowpipe.get_provider_info import get_provider_info


def form_widgets() -> dict[str, Any]:
    """The fields of the extra, as WTForms has them (observed with Airflow 2.11.2 and 3.1.8).

    Airflow 3.1 has no WTForms and puts its own classes in their places while it calls this.
    """
    from flask_appbuilder.fieldwidgets import BS3PasswordFieldWidget, BS3TextFieldWidget
    from wtforms import PasswordField, StringField
    from wtforms.validators import Optional, any_of

    def field(label: str, description: str, schema: dict[str, Any]) -> Any:
        if schema.get("format") == "password":
            return PasswordField(
                label, widget=BS3PasswordFieldWidget(), description=description, validators=[Optional()]
            )
        choices = schema.get("enum")
        return StringField(
            label,
            widget=BS3TextFieldWidget(),
            description=f"{description}: {', '.join(choices)}" if choices else description,
            validators=[any_of(choices)] if choices else [Optional()],
            default=schema.get("default"),
        )

    return {name: field(**described) for name, described in _connection_type()["conn-fields"].items()}


def form_behaviour() -> dict[str, Any]:
    """What is hidden, renamed and explained of the fields that every connection has."""
    return {name.replace("-", "_"): value for name, value in _connection_type()["ui-field-behaviour"].items()}


def _connection_type() -> dict[str, Any]:
    found: dict[str, Any] = get_provider_info()["connection-types"][0]
    return found
