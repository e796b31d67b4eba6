"""Which tasks a page is about, how many of them it reads, and what of them its user may see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails
from airflow.models.connection import Connection
from airflow.models.xcom import XComModel
from airflow.providers.common.compat.sdk import conf

from airflow_provider_snowpipe.streaming.names import PipeName

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
    from sqlalchemy.orm import Session


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """How much of the past a page reads, as the section ``[snowpipe]`` of Airflow's configuration sets.

    :param days: ``page_history_days``, the greatest age
    :param tasks: ``page_history_tasks``, most task instances, the latest ones
    :param size: ``page_history_megabytes``, most bytes of their XComs
    """

    days: int = 45
    tasks: int = 2_000
    size: int = 16_000_000

    @classmethod
    def configured(cls) -> Self:
        """The limits of this Airflow."""
        return cls(
            conf.getint("snowpipe", "page_history_days", fallback=cls().days),
            conf.getint("snowpipe", "page_history_tasks", fallback=cls().tasks),
            1_000_000 * conf.getint("snowpipe", "page_history_megabytes", fallback=16),
        )


@dataclass(frozen=True, slots=True)
class Rights:
    """What a user may read, by Airflow's own checks.

    :param may_read: whether a connection of that id
    """

    dag_ids: frozenset[str]
    may_read: Callable[[str], bool]

    @classmethod
    def of(cls, user: BaseUser, session: Session) -> Self:
        """Ask the auth manager."""
        manager: Any = get_auth_manager()

        @cache
        def may_read(connection: str) -> bool:
            team = None
            if conf.getboolean("core", "multi_team", fallback=False):
                team = Connection.get_team_name(connection, session=session)
            details = ConnectionDetails(conn_id=connection, team_name=team)
            return bool(manager.is_authorized_connection(method="GET", details=details, user=user))

        return cls(frozenset(manager.get_authorized_dag_ids(user=user, session=session)), may_read)


@dataclass(frozen=True, slots=True)
class Where:
    """Which tasks are meant; None for all."""

    connection: str | None = None
    pipe: PipeName | None = None
    dag_id: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None

    def conditions(self) -> list[Any]:
        """As conditions of a query over XComs."""
        names = ("dag_id", "run_id", "task_id", "map_index")
        return [
            getattr(XComModel, name) == required
            for name in names
            if (required := getattr(self, name)) is not None
        ]
