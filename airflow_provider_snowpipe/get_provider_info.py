"""Provider metadata, as Airflow reads it before its own configuration is ready.

Nothing of Airflow is imported here: an exception in this module stops every ``airflow`` command.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_snowpipe import __version__

_PACKAGE = "airflow_provider_snowpipe"
_INTEGRATION = "Snowpipe Streaming"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata: its modules, its connection type and the fields of its form."""
    return {
        "package-name": "airflow-provider-snowpipe",
        "name": _INTEGRATION,
        "description": "Exactly-once loading of Snowflake through Snowpipe Streaming channels, with Spark.",
        "state": "ready",
        "lifecycle": "incubation",
        "source-date-epoch": 1795219200,
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://docs.snowflake.com/en/user-guide/snowpipe-streaming/data-load-snowpipe-streaming-overview",
                "tags": ["service"],
            }
        ],
        "hooks": _modules("hooks.snowpipe", "hooks.bulk"),
        "operators": _modules(
            "operators.stream",
            "operators.channels",
            "operators.offsets",
            "operators.audit",
            "operators.append",
            "operators.branch",
            "operators.copy",
            "operators.bulk_load",
            "operators.load",
            "operators.file_pipe",
            "operators.ingest_files",
            "operators.stage_files",
        ),
        "sensors": _modules("sensors.commit", "sensors.files_loaded"),
        "triggers": _modules(
            "triggers.application",
            "triggers.commit",
            "triggers.files_loaded",
            "triggers.offset",
            "triggers.statement",
        ),
        "asset-uris": _asset_uris(),
        "dataset-uris": _asset_uris(),
        "queues": [f"{_PACKAGE}.queues.snowpipe.SnowpipeMessageQueueProvider"],
        "task-decorators": [
            {"name": "snowpipe_append", "class-name": f"{_PACKAGE}.decorators.append.snowpipe_append_task"},
            {"name": "snowpipe_route", "class-name": f"{_PACKAGE}.decorators.route.snowpipe_route_task"},
        ],
        "notifications": [f"{_PACKAGE}.notifications.lag.SnowpipeLagNotifier"],
        "extra-links": [
            f"{_PACKAGE}.links.snowpipe.SnowsightLink",
            f"{_PACKAGE}.links.snowpipe.SparkUiLink",
            f"{_PACKAGE}.links.snowpipe.ChannelPageLink",
        ],
        "plugins": [{"name": "snowpipe", "plugin-class": f"{_PACKAGE}.plugins.snowpipe.SnowpipePlugin"}],
        "cli": [f"{_PACKAGE}.cli.definition.get_cli_commands"],
        "connection-types": [_connection_type()],
        "config": {
            "snowpipe": {
                "description": "Assets, balance, source logs, and the past that the Snowpipe page reads.",
                "options": {
                    "on_imbalance": _setting(
                        "warn",
                        "What to do where a channel counts other rows than its checkpoint: warn or fail.",
                        "string",
                    ),
                    "log_path": _setting(
                        "",
                        "A folder or URL for the source logs of files; empty for _snowpipe in their paths.",
                        "string",
                    ),
                    "ledger_table": _setting(
                        "",
                        "The load ledger of COPY: NAME, SCHEMA.NAME or DATABASE.SCHEMA.NAME; empty for "
                        "SNOWPIPE_LOADS in the target's schema.",
                        "string",
                    ),
                    "local_rows_without_spark": _setting(
                        "True",
                        "Whether small loads on a local master run in Python alone, without Spark and Java.",
                        "boolean",
                    ),
                    "describe_assets": _setting(
                        "True",
                        "Whether a load without an outlet of its table reports it as an asset.",
                        "boolean",
                    ),
                    "show_unloaded_rows": _setting(
                        "True", "Whether XComs have the text of rows that did not load.", "boolean"
                    ),
                    "credit_price": _setting(
                        "0", "What a credit costs; with it the Snowpipe page shows costs in money.", "float"
                    ),
                    "currency": _setting("USD", "The currency of that price.", "string"),
                    "page_history_days": _setting("45", "Greatest age of tasks, days."),
                    "page_history_tasks": _setting("2000", "Most task instances, the latest ones."),
                    "page_history_megabytes": _setting("16", "Most megabytes of their XComs."),
                },
            }
        },
    }


def _setting(default: str, description: str, kind: str = "integer") -> dict[str, Any]:
    return {
        "description": description,
        "version_added": __version__,
        "type": kind,
        "example": None,
        "default": default,
    }


def _asset_uris() -> list[dict[str, Any]]:
    return [
        {
            "schemes": ["snowpipe"],
            "handler": f"{_PACKAGE}.assets.uri.sanitize_uri",
            "factory": f"{_PACKAGE}.assets.uri.snowpipe_asset",
            "to_openlineage_converter": f"{_PACKAGE}.assets.uri.convert_asset_to_openlineage",
        }
    ]


def _modules(*names: str) -> list[dict[str, Any]]:
    return [{"integration-name": _INTEGRATION, "python-modules": [f"{_PACKAGE}.{name}" for name in names]}]


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "snowpipe",
        "hook-class-name": f"{_PACKAGE}.hooks.snowpipe.SnowpipeHook",
        "hook-name": _INTEGRATION,
        "ui-field-behaviour": {
            # The port is not hidden: the Test button of Airflow 3.3.1 and 3.3.2 refuses a saved connection
            # without one, as if it were for another destination (apache/airflow pull request 73298).
            "hidden-fields": [],
            "relabeling": {"host": "Account URL", "login": "User", "password": "Token or key passphrase"},
            "placeholders": {
                "host": "https://<account>.snowflakecomputing.com (empty: made from the account)",
                "port": "443",
                "login": "LOADER",
                "password": "the access token, or the passphrase of an encrypted key",
                "schema": "PUBLIC",
            },
        },
        "conn-fields": {
            "account": _text("Account", "Account identifier, <organization>-<account>"),
            "auth": {
                "label": "Authentication",
                "description": "How this connection proves who it is",
                "schema": {
                    "type": "string",
                    "enum": ["key_pair", "programmatic_access_token", "oauth"],
                    "default": "key_pair",
                },
            },
            "private_key_file": _text("Private key (path)", "PEM file on every worker and triggerer"),
            "private_key_content": _text(
                "Private key (text)", "The PEM text or its base64 form; not together with a path", "password"
            ),
            "role": _text("Role", "Role of a key-pair session; empty for the user's default role"),
            "warehouse": _text("Warehouse", "Warehouse of SQL statements; empty for the user's default one"),
            "grant_type": _text("OAuth grant", "refresh_token, client_credentials or password"),
            "token_endpoint": _text("OAuth token endpoint", "https address; empty for the account's own"),
            "scope": _text("OAuth scope", "What the token is asked for"),
            "refresh_token": _text("OAuth refresh token", "For the grant refresh_token", "password"),
            "database": _text("Database", "Database of the pipe, spelled exactly as Snowflake stores it"),
            "table": _text("Default table", "Load through this table's default pipe, <table>-STREAMING"),
            "pipe": _text("Default pipe", "Load through this pipe; not together with a default table"),
            "ca_bundle": _text(
                "CA bundle (path)",
                "PEM file of trusted roots; empty for the environment's or the public ones",
            ),
        },
    }


def _text(label: str, description: str, form: str | None = None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": ["string", "null"]}
    if form is not None:
        schema["format"] = form
    return {"label": label, "description": description, "schema": schema}
