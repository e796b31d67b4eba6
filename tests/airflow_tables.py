"""Airflow's own tables in memory, and what tasks leave in them."""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import pytest

import tests.airflow_connections  # noqa: F401  gives Airflow a home before it is imported
from airflow_provider_snowpipe.routing.load_plan import LoadPath, LoadPlan, PathEstimate
from tests.airflow_version import AIRFLOW

PLAN = LoadPlan(
    LoadPath.STREAM,
    ("rows are required within 60 s",),
    (
        PathEstimate(LoadPath.STREAM, 0.02, 7.0, 12.0),
        PathEstimate(LoadPath.COPY, 0.3, 60.0, 90.0, unfit="too slow", warehouse="XSMALL"),
        PathEstimate(LoadPath.PIPE, 0.1, 60.0, 70.0),
    ),
)
"""A plan of a load of an end."""
DONE = "success"


class AirflowTables:
    """Airflow's database of one test."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.now = dt.datetime.now(dt.UTC).replace(microsecond=0)
        self._runs: dict[tuple[str, str], int] = {}

    def leave(
        self,
        *,
        dag: str = "orders",
        run: str = "r1",
        task: str = "load",
        map_index: int = -1,
        state: str = DONE,
        minutes_ago: float = 10,
        seconds: float = 5,
        operator: str = "SnowpipeStreamOperator",
        **xcoms: Any,
    ) -> None:
        """Let a task leave XComs; None of one leaves it out."""
        from airflow.models.taskinstance import TaskInstance
        from airflow.models.xcom import XComModel

        ended = self.now - dt.timedelta(minutes=minutes_ago)
        times = {"start_date": ended - dt.timedelta(seconds=seconds)}
        times["end_date"] = ended if state in (DONE, "failed") else None
        names = {"dag_id": dag, "run_id": run, "task_id": task, "map_index": map_index}
        with self.engine.begin() as database:
            if (dag, run) not in self._runs:
                self._runs[dag, run] = len(self._runs) + 1
                self._dag(database, dag)
            facts = {"state": state, "operator": operator, "pool": "default_pool", **times}
            database.execute(TaskInstance.__table__.insert().values(**names, **facts))
            for key, value in xcoms.items():
                if value is not None:
                    row = {"key": key, "value": value, "dag_run_id": self._runs[dag, run], "timestamp": ended}
                    database.execute(XComModel.__table__.insert().values(**names, **row))

    def _dag(self, database: Any, dag: str) -> None:
        from airflow.models.dag import DagModel
        from airflow.models.dagbundle import DagBundleModel

        if len(self._runs) == 1:
            database.execute(DagBundleModel.__table__.insert().values(name="b"))
        if sum(one == dag for one, _ in self._runs) == 1:
            columns = DagModel.__table__.columns
            needed = [one.name for one in columns if not (one.nullable or one.default or one.server_default)]
            values = {**dict.fromkeys(needed, False), "dag_id": dag, "bundle_name": "b", "fileloc": "f"}
            database.execute(DagModel.__table__.insert().values(**values))


def page_address(connection: str, table: str = "ORDERS", channel: str | None = None) -> str:
    query = {"database": "LOCAL", "schema": "PUBLIC", "pipe": f"{table}-STREAMING"}
    kind = "channels" if channel is None else "channel"
    more = {} if channel is None else {"channel": channel}
    return f"/snowpipe/connections/{quote(connection, safe='')}/{kind}?{urlencode({**query, **more})}"


def streamed(
    channels: Mapping[str, Mapping[str, Any]], *, connection: str = "lake", table: str = "ORDERS", **more: Any
) -> dict[str, Any]:
    """The XComs of a stream task; a channel is ``{"to": …, "rows": …}`` and what else is not as usual."""
    usual = {"from": None, "bytes": 10, "rejected": 0, "dead_lettered": 0, "committed": True}
    usual["latency_ms"] = 40
    value = {"pipe": f"LOCAL.PUBLIC.{table}-STREAMING", "seconds": 2.0, **more}
    value["channels"] = {name: {**usual, **one} for name, one in channels.items()}
    targets = {
        name: {"token": one["to"], "offset_format": "file:line", "rows": one["rows"]}
        for name, one in channels.items()
    }
    return {"channel_page": page_address(connection, table), "return_value": value, "targets": targets}


@pytest.fixture
def signed_in(
    airflow_tables: AirflowTables, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str | None], None]]:
    """Sign a user of some role in, on an API server with these tables; nobody is before."""
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.common.db.common import _get_session
    from airflow.api_fastapi.core_api.security import get_user
    from sqlalchemy.orm import Session

    from airflow_provider_snowpipe.plugins import pages

    def session() -> Iterator[Session]:
        with Session(airflow_tables.engine) as opened:
            yield opened

    # Airflow reads teams from the database of its own, which has no tables here.
    for model in ("connection.Connection", "dag.DagModel"):
        monkeypatch.setattr(f"airflow.models.{model}.get_team_name", lambda *_, **__: None)
    create_auth_manager()
    pages.app.dependency_overrides[_get_session] = session

    def sign_in(role: str | None) -> None:
        user = SimpleAuthManagerUser(username="u", role=role)
        pages.app.dependency_overrides[get_user] = lambda: user

    yield sign_in
    pages.app.dependency_overrides.clear()


@pytest.fixture(scope="session")
def empty_tables() -> Iterator[Any]:
    if AIRFLOW < (3, 1):
        pytest.skip("Airflow 2 has no such pages")
    from airflow.models import import_all_models
    from airflow.models.base import Base
    from sqlalchemy import create_engine
    from sqlalchemy.pool import StaticPool

    import_all_models()
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def airflow_tables(empty_tables: Any) -> Iterator[AirflowTables]:
    yield AirflowTables(empty_tables)
    from airflow.models.base import Base

    with empty_tables.begin() as database:
        for table in ("xcom", "task_instance", "dag", "dag_bundle"):
            database.execute(Base.metadata.tables[table].delete())
