"""What the tests of the local service share: macros that are compiled once, and digests that cost little."""

from collections.abc import Iterator

import duckdb
import pytest
from snowpipe_local import accounts, server
from snowpipe_local.engine import conversions
from tests.local_catalog import LocalCatalog
from tests.unit.service_in_process import ServiceInProcess
from tests.unit.sql_sessions import SqlSessions


@pytest.fixture(scope="session", autouse=True)
def macros_are_copied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hundreds of catalogs need the same macros: to copy them takes 3 ms, to define them 36 ms."""
    template = tmp_path_factory.mktemp("macros") / "macros.duckdb"
    with duckdb.connect(template) as engine:
        conversions.define(engine)

    def copy(connection: duckdb.DuckDBPyConnection) -> None:
        connection.execute(f"ATTACH '{template}' AS macros (READ_ONLY)")
        connection.execute("COPY FROM DATABASE macros TO memory")
        connection.execute("DETACH macros")
        conversions.define_function(connection)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversions, "define", copy)
        yield


@pytest.fixture(scope="session", autouse=True)
def passwords_are_quick_and_memory_has_no_bound() -> Iterator[None]:
    """A digest takes 70 ms at each start, sign-in and CREATE USER.

    A command that a test starts here would bound what all later tests of this process may take.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "bound_memory", lambda _: None)
        patch.setitem(accounts._SCRYPT, "n", 2)
        yield


@pytest.fixture(scope="session")
def shared_catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCatalog]:
    made = LocalCatalog(tmp_path_factory.mktemp("local"))
    yield made
    made.close()


@pytest.fixture
def local(shared_catalog: LocalCatalog) -> Iterator[LocalCatalog]:
    """A catalog without tables, in which the stage S is empty."""
    yield shared_catalog
    shared_catalog.empty()


@pytest.fixture(scope="session")
def shared_sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlSessions]:
    made = SqlSessions(tmp_path_factory.mktemp("sql"))
    yield made
    made.close()


@pytest.fixture
def sql(shared_sessions: SqlSessions) -> Iterator[SqlSessions]:
    """A catalog without tables, users and roles."""
    yield shared_sessions
    shared_sessions.empty()


@pytest.fixture(scope="module")
def module_sql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlSessions]:
    """A catalog without tables, for one module: what its tests make stays until its end."""
    made = SqlSessions(tmp_path_factory.mktemp("sql"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceInProcess]:
    made = ServiceInProcess(tmp_path_factory.mktemp("service"))
    yield made
    made.close()


@pytest.fixture
def service(shared_service: ServiceInProcess) -> Iterator[ServiceInProcess]:
    """A service as it is after its first start."""
    yield shared_service
    shared_service.empty()
