"""Who may read and write staged files ("Access control privileges", stage privileges)."""

from __future__ import annotations

from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.stages.definition import StageDefinition
from airflow_provider_snowpipe.local.stages.location import StageLocation


def require_read(session: Session, location: StageLocation) -> None:
    """Raise unless the session may list, download and load the files of a location.

    :raises SqlError: without READ on an internal stage, USAGE on an external one, OWNERSHIP of a table.
    """
    _require(session, location, "READ")


def require_write(session: Session, location: StageLocation) -> None:
    """Raise unless the session may upload or delete files of a location.

    :raises SqlError: without WRITE on an internal stage, USAGE on an external one, OWNERSHIP of a table.
    """
    _require(session, location, "WRITE")


def securable(stage: StageDefinition) -> Securable:
    """Return a stage as an object of access control."""
    return Securable("STAGE", (stage.database, stage.schema, stage.name))


def _require(session: Session, location: StageLocation, privilege: str) -> None:
    if location.table is not None:
        session.require("OWNERSHIP", "TABLE", *location.table)
    elif location.stage is not None and location.kind != "URL" and not location.stage.temporary:
        needed = "USAGE" if location.is_external else privilege
        stage = location.stage
        session.require(needed, "STAGE", stage.database, stage.schema, stage.name)
