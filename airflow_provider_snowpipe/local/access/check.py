"""Checks of privileges, with the errors that Snowflake gives."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_snowpipe.local.access.access import Access
from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.errors import SqlError, object_missing


def insufficient(target: Securable) -> SqlError:
    """Return the error for an object that shows, but may not be used that way (003001)."""
    named = "account 'LOCAL'" if target.kind == "ACCOUNT" else f"{target.kind.lower()} '{target.name}'"
    return SqlError(
        "003001", "42501", f"SQL access control error:\nInsufficient privileges to operate on {named}"
    )


def require(access: Access, roles: Iterable[str], privilege: str, target: Securable) -> None:
    """Raise unless some of the roles hold a privilege on an object, and USAGE on what contains it.

    An object on which the roles hold nothing at all stays hidden, as one that does not exist.

    :param roles: active roles with all that they inherit.
    :raises SqlError: 002003 for a hidden object, 003001 for one that shows but may not be used that way.
    """
    active = frozenset(roles)
    for kind, depth in (("DATABASE", 1), ("SCHEMA", 2)):
        above = Securable(kind, target.path[:depth])
        if depth < target.depth and target.kind != "WAREHOUSE" and not access.allows(active, "USAGE", above):
            raise _hidden(above)
    if access.allows(active, privilege, target):
        return
    if target.kind != "ACCOUNT" and not access.held(active, target):
        raise _hidden(target)
    raise insufficient(target)


def _hidden(target: Securable) -> SqlError:
    return object_missing(target.kind.capitalize(), ".".join(target.path))
