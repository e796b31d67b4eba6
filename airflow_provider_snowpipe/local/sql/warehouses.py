"""CREATE, ALTER, DROP, SHOW and DESCRIBE of warehouses; they are remembered and compute nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from airflow_provider_snowpipe.local.access.model import Securable, Warehouse
from airflow_provider_snowpipe.local.errors import SqlError, object_exists, object_missing, unsupported
from airflow_provider_snowpipe.local.sql.reader import Reader, flag, whole
from airflow_provider_snowpipe.local.sql.results import Result, listing, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.show import Shown
from airflow_provider_snowpipe.local.stages.definition import invalid_value

_DONE = "Statement executed successfully."
_SIZES = {
    "XSMALL": "X-Small", "SMALL": "Small", "MEDIUM": "Medium", "LARGE": "Large", "XLARGE": "X-Large",
    "XXLARGE": "2X-Large", "X2LARGE": "2X-Large", "2XLARGE": "2X-Large", "XXXLARGE": "3X-Large",
    "X3LARGE": "3X-Large", "3XLARGE": "3X-Large", "X4LARGE": "4X-Large", "4XLARGE": "4X-Large",
    "X5LARGE": "5X-Large", "5XLARGE": "5X-Large", "X6LARGE": "6X-Large", "6XLARGE": "6X-Large",
}  # fmt: skip
# Remembered without effect.
_REMEMBERED = frozenset(
    {"WAREHOUSE_TYPE", "MAX_CLUSTER_COUNT", "MIN_CLUSTER_COUNT", "SCALING_POLICY", "RESOURCE_MONITOR",
     "ENABLE_QUERY_ACCELERATION", "QUERY_ACCELERATION_MAX_SCALE_FACTOR", "MAX_CONCURRENCY_LEVEL",
     "STATEMENT_QUEUED_TIMEOUT_IN_SECONDS", "STATEMENT_TIMEOUT_IN_SECONDS", "RESOURCE_CONSTRAINT",
     "GENERATION", "WAIT_FOR_COMPLETION"}
)  # fmt: skip

_RIGHTS = {
    "SUSPEND": "OPERATE", "RESUME": "OPERATE", "ABORT ALL QUERIES": "OPERATE", "SET": "MODIFY",
    "UNSET": "MODIFY", "RENAME TO": "OWNERSHIP",
}  # fmt: skip


def create_warehouse(session: Session, reader: Reader) -> Result:
    """CREATE [OR REPLACE] WAREHOUSE [IF NOT EXISTS] name [[WITH] property = value ..]; it becomes current."""
    head = reader.target(1)
    reader.accept("WITH")
    properties = reader.properties()
    session.commit()
    access = session.catalog.access
    session.require_global("CREATE WAREHOUSE")
    if head.name in access.state.warehouses:
        if head.is_tolerant:
            return status(f"{head.name} already exists, statement succeeded.")
        if not reader.is_replacing:
            raise object_exists(head.name)
        session.require("OWNERSHIP", "WAREHOUSE", name=head.name)
    suspended = flag("INITIALLY_SUSPENDED", properties.pop("INITIALLY_SUSPENDED", "FALSE"))
    made = _with(Warehouse(head.name, access.now_ms(), suspended=suspended), properties)
    with access.change() as state:
        state.warehouses[head.name] = made
    session.created("WAREHOUSE", name=head.name)
    session.warehouse = head.name
    return status(f"Warehouse {head.name} successfully created.")


def alter_warehouse(session: Session, reader: Reader) -> Result:
    """ALTER WAREHOUSE [IF EXISTS] name SUSPEND | RESUME [IF SUSPENDED] | SET .. | UNSET .. | RENAME TO."""
    head = reader.target(1)
    verb = reader.accept("SUSPEND", "RESUME", "ABORT ALL QUERIES", "SET", "UNSET", "RENAME TO")
    if not verb:
        raise unsupported(f"ALTER WAREHOUSE .. {reader.word}")
    is_tolerant = verb == "RESUME" and bool(reader.accept("IF SUSPENDED"))
    names = reader.names() if verb == "UNSET" else [reader.name()] if verb == "RENAME TO" else []
    properties = reader.properties(needed=True) if verb == "SET" else {}
    reader.end()
    session.commit()
    access = session.catalog.access
    if head.name not in access.state.warehouses:
        if head.is_tolerant:
            return status(_DONE)
        raise object_missing("Warehouse", head.name)
    known = access.state.warehouses[head.name]
    session.require(_RIGHTS[verb], "WAREHOUSE", name=head.name)
    if verb == "ABORT ALL QUERIES":
        return status(_DONE)
    if verb == "RENAME TO":
        return _rename(session, known, names[0])
    if verb == "SET":
        changed = _with(known, properties)
    elif verb == "UNSET":
        changed = _without(known, names)
    else:
        changed = _switched(known, verb == "SUSPEND", tolerant=is_tolerant)
    with access.change() as state:
        state.warehouses[head.name] = changed
    return status(_DONE)


def drop_warehouse(session: Session, reader: Reader) -> Result:
    """DROP WAREHOUSE [IF EXISTS] name."""
    head = reader.last_target(1)
    session.commit()
    access = session.catalog.access
    if head.name not in access.state.warehouses:
        raise object_missing("Warehouse", head.name)
    session.require("OWNERSHIP", "WAREHOUSE", name=head.name)
    with access.change() as state:
        del state.warehouses[head.name]
    session.dropped("WAREHOUSE", name=head.name)
    if session.warehouse == head.name:
        session.warehouse = None
    return status(f"{head.name} successfully dropped.")


def show_warehouses(session: Session, shown: Shown) -> Result:
    """SHOW WAREHOUSES [LIKE]."""
    rows = [
        (
            known.name,
            "SUSPENDED" if known.suspended else "STARTED",
            dict(known.properties).get("WAREHOUSE_TYPE", "STANDARD"),
            known.size,
            0,
            0,
            "N",
            "Y" if known.name == session.warehouse else "N",
            known.auto_suspend,
            str(known.auto_resume).lower(),
            known.created_on_ms,
            session.catalog.access.owner(Securable("WAREHOUSE", (known.name,))),
            known.comment,
        )
        for known in sorted(session.catalog.access.state.warehouses.values(), key=lambda known: known.name)
        if session.can_see("WAREHOUSE", name=known.name) and shown.matches(known.name)
    ]
    return listing(
        ("name", "state", "type", "size", "running", "queued", "is_default", "is_current", "auto_suspend",
         "auto_resume", "created_on", "owner", "comment"),
        rows,
        ("running", "queued", "auto_suspend"),
    )  # fmt: skip


def describe_warehouse(session: Session, reader: Reader) -> Result:
    """DESCRIBE WAREHOUSE name."""
    head = reader.last_target(1)
    known = session.catalog.access.state.warehouses.get(head.name)
    if known is None or not session.can_see("WAREHOUSE", name=head.name):
        raise object_missing("Warehouse", head.name)
    return listing(("created_on", "name", "kind"), [(known.created_on_ms, known.name, "WAREHOUSE")])


def _switched(known: Warehouse, suspend: bool, *, tolerant: bool) -> Warehouse:
    if known.suspended == suspend and not tolerant:
        verb = "suspended" if suspend else "resumed"
        raise SqlError("090064", "22000", f"Invalid state. Warehouse '{known.name}' cannot be {verb}.")
    return dataclasses.replace(known, suspended=suspend)


def _rename(session: Session, known: Warehouse, name: str) -> Result:
    access = session.catalog.access
    if name in access.state.warehouses:
        raise object_exists(name)
    with access.change() as state:
        del state.warehouses[known.name]
        state.warehouses[name] = dataclasses.replace(known, name=name)
    access.renamed(Securable("WAREHOUSE", (known.name,)), Securable("WAREHOUSE", (name,)))
    if session.warehouse == known.name:
        session.warehouse = name
    return status(_DONE)


def _with(known: Warehouse, properties: Mapping[str, str]) -> Warehouse:
    changed = known
    for name, value in properties.items():
        if name == "WAREHOUSE_SIZE":
            size = _SIZES.get(value.upper().replace("-", ""))
            if size is None:
                raise invalid_value(name, value, f"one of {', '.join(sorted(set(_SIZES.values())))}")
            changed = dataclasses.replace(changed, size=size)
        elif name == "AUTO_SUSPEND":
            changed = dataclasses.replace(changed, auto_suspend=whole(name, value))
        elif name == "AUTO_RESUME":
            changed = dataclasses.replace(changed, auto_resume=flag(name, value))
        elif name == "COMMENT":
            changed = dataclasses.replace(changed, comment=value)
        elif name in _REMEMBERED:
            kept = {**dict(changed.properties), name: value}
            changed = dataclasses.replace(changed, properties=tuple(kept.items()))
        else:
            raise unsupported(f"property {name} of a warehouse")
    return changed


def _without(known: Warehouse, names: list[str]) -> Warehouse:
    fresh = Warehouse(known.name, known.created_on_ms)
    fields = {"AUTO_SUSPEND": "auto_suspend", "AUTO_RESUME": "auto_resume", "COMMENT": "comment"}
    changed = known
    for name in names:
        if name in fields:
            changed = dataclasses.replace(changed, **{fields[name]: getattr(fresh, fields[name])})
        elif name in _REMEMBERED:
            kept = tuple(pair for pair in changed.properties if pair[0] != name)
            changed = dataclasses.replace(changed, properties=kept)
        else:
            raise unsupported(f"property {name} of a warehouse")
    return changed
