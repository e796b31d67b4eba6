"""What is current in a session: its database and schema, role and warehouse."""

from __future__ import annotations

from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.errors import SqlError, missing_account_object, object_missing
from airflow_provider_snowpipe.local.sql.session import Session


def use_schema(session: Session, database: str | None, schema: str | None) -> None:
    """Make a database or schema current.

    :param database: exact name, or None for the current one.
    :param schema: exact name; None takes PUBLIC of a new database.
    :raises SqlError: when either does not exist.
    """
    target = session.visible_database(database or session.current_database())
    # Every database has an INFORMATION_SCHEMA, which is no schema of its own here.
    if schema is not None and schema != "INFORMATION_SCHEMA":
        if schema not in target.schemas:
            raise object_missing("Schema", f"{target.name}.{schema}")
        session.require("USAGE", "SCHEMA", target.name, schema)
    session.database = target.name
    session.schema = schema or ("PUBLIC" if "PUBLIC" in target.schemas else None)


def use_role(session: Session, role: str) -> None:
    """Make a role the primary one.

    :raises SqlError: 003013 when the user may not use it, 002043 when it does not exist.
    """
    access = session.catalog.access
    if role not in access.state.roles:
        raise missing_account_object()
    if not access.may_use(session.user, role):
        raise SqlError(
            "003013",
            "42501",
            f"SQL access control error:\nRequested role '{role}' is not assigned to the executing user. "
            "Specify another role to activate.",
        )
    session.role = role


def use_warehouse(session: Session, warehouse: str) -> None:
    """Make a warehouse current.

    :raises SqlError: when it does not exist or the session's roles have no USAGE on it.
    """
    access = session.catalog.access
    if warehouse not in access.state.warehouses or not access.allows(
        session.roles, "USAGE", Securable("WAREHOUSE", (warehouse,))
    ):
        raise missing_account_object()
    session.warehouse = warehouse
