from __future__ import annotations

import pytest
from snowpipe_local.access import model
from snowpipe_local.access.access import Access
from snowpipe_local.access.model import Grant, Role, RoleGrant, Securable, User
from snowpipe_local.catalog import Catalog
from snowpipe_local.errors import SqlError
from snowpipe_local.faults import Faults
from snowpipe_local.sql import front
from snowpipe_local.sql.session import Session
from snowpipe_local.stages.storage import Outside, Storage

STAGE = Securable("STAGE", ("LOCAL", "PUBLIC", "S"))
FORMAT = Securable("FILE FORMAT", ("LOCAL", "PUBLIC", "F"))


@pytest.fixture
def catalog(tmp_path):
    access = Access()
    with access.change() as state:
        state.roles["LOADER"] = Role("LOADER", "USERADMIN", 0)
        state.users["ANN"] = User("ANN", "USERADMIN", 0, default_role="LOADER")
        given = RoleGrant("LOADER", "USER", "ANN", "ACCOUNTADMIN", 0)
        state.role_grants[model.role_grant_key(given)] = given
    data, lake = tmp_path / "data", tmp_path / "lake"
    data.mkdir()
    lake.mkdir()
    storage = Storage(data / "staged", data, Outside((lake,)))
    catalog = Catalog(data, Faults(), access=access, storage=storage)
    owner = Session(catalog, "DEMO", "LOCAL", "PUBLIC")
    for statement in ("CREATE STAGE s", "CREATE FILE FORMAT f TYPE = CSV", "CREATE TABLE t (id INT)"):
        front.execute(owner, statement)
    for parent in (Securable("DATABASE", ("LOCAL",)), Securable("SCHEMA", ("LOCAL", "PUBLIC"))):
        _grant(access, "USAGE", parent)
    yield catalog
    catalog.close()


def _grant(access: Access, privilege: str, target: Securable) -> None:
    with access.change() as state:
        grant = Grant(privilege, target, "LOADER", "ACCOUNTADMIN", 0)
        state.grants[model.grant_key(grant)] = grant


def _loader(catalog: Catalog) -> Session:
    return Session(catalog, "ANN", "LOCAL", "PUBLIC", moves_files=True)


def _refused(session: Session, statement: str) -> str:
    with pytest.raises(SqlError) as error:
        front.execute(session, statement)
    return error.value.code


def test_what_no_role_was_granted_stays_hidden(catalog):
    for statement in [
        *("LIST @s", "GET @s file:///tmp", "REMOVE @s", "PUT file:///x @s", "DESC STAGE s", "LIST @%t"),
        *("DROP STAGE s", "ALTER STAGE s SET COMMENT = 'x'", "DESC FILE FORMAT f", "DROP FILE FORMAT f"),
    ]:
        assert _refused(_loader(catalog), statement) == "002003"
        assert front.execute(_loader(catalog), "SHOW STAGES").rows == []
        assert front.execute(_loader(catalog), "SHOW FILE FORMATS").rows == []


def test_read_lists_and_downloads_but_does_not_write(catalog):
    _grant(catalog.access, "READ", STAGE)
    session = _loader(catalog)
    for statement in ("LIST @s", "GET @s file:///tmp", "DESC STAGE s"):
        front.execute(session, statement)
    for statement in ("PUT file:///x @s", "REMOVE @s", "DROP STAGE s", "CREATE OR REPLACE STAGE s"):
        assert _refused(session, statement) == "003001", statement


def test_write_uploads_and_removes(catalog):
    _grant(catalog.access, "WRITE", STAGE)
    session = _loader(catalog)
    for statement in ("PUT file:///x @s", "REMOVE @s"):
        front.execute(session, statement)
    assert _refused(session, "LIST @s") == "003001"


def test_purge_writes(catalog):
    _grant(catalog.access, "INSERT", Securable("TABLE", ("LOCAL", "PUBLIC", "T")))
    _grant(catalog.access, "READ", STAGE)
    front.execute(_loader(catalog), "COPY INTO t FROM @s")
    assert _refused(_loader(catalog), "COPY INTO t FROM @s PURGE = TRUE") == "003001"
    _grant(catalog.access, "WRITE", STAGE)
    front.execute(_loader(catalog), "COPY INTO t FROM @s PURGE = TRUE")


def test_what_is_outside_needs_the_right_to_make_a_stage_for_it(catalog, tmp_path):
    file = tmp_path / "lake" / "a.csv"
    file.write_text("1\n")
    _grant(catalog.access, "INSERT", Securable("TABLE", ("LOCAL", "PUBLIC", "T")))
    session, url = _loader(catalog), f"'file://{file.parent}/'"
    front.execute(session, f"CREATE TEMPORARY STAGE passing URL = {url}")
    statements = (
        f"COPY INTO t FROM {url}",
        "COPY INTO t FROM @passing PURGE = TRUE",
        "LIST @passing",
        "RM @passing",
    )
    for statement in statements:
        assert _refused(session, statement) == "003001", statement
    session.schema = None
    assert _refused(session, f"COPY INTO LOCAL.PUBLIC.t FROM {url}") == "003001"
    assert file.exists()
    session.schema = "PUBLIC"
    _grant(catalog.access, "CREATE STAGE", Securable("SCHEMA", ("LOCAL", "PUBLIC")))
    for statement in statements:
        front.execute(session, statement)
    assert not file.exists()


def test_a_stage_moves_to_a_schema_where_it_may_be_created(catalog):
    owner = Session(catalog, "DEMO", "LOCAL", "PUBLIC")
    front.execute(owner, "CREATE SCHEMA other")
    _grant(catalog.access, "CREATE STAGE", Securable("SCHEMA", ("LOCAL", "PUBLIC")))
    _grant(catalog.access, "USAGE", Securable("SCHEMA", ("LOCAL", "OTHER")))
    front.execute(_loader(catalog), "CREATE STAGE mine")
    assert _refused(_loader(catalog), "ALTER STAGE mine RENAME TO other.mine") == "003001"
    _grant(catalog.access, "CREATE STAGE", Securable("SCHEMA", ("LOCAL", "OTHER")))
    front.execute(_loader(catalog), "ALTER STAGE mine RENAME TO other.mine")


def test_creating_needs_its_privilege_and_makes_the_role_the_owner(catalog):
    session = _loader(catalog)
    for kind in ("STAGE", "FILE FORMAT"):
        assert _refused(session, f"CREATE {kind} mine") == "003001"
        front.execute(session, f"CREATE TEMPORARY {kind} passing")
        _grant(catalog.access, f"CREATE {kind}", Securable("SCHEMA", ("LOCAL", "PUBLIC")))
        front.execute(session, f"CREATE {kind} mine")
        assert catalog.access.owner(Securable(kind, ("LOCAL", "PUBLIC", "MINE"))) == "LOADER"
        front.execute(session, f"ALTER {kind} mine RENAME TO yours")
        assert catalog.access.owner(Securable(kind, ("LOCAL", "PUBLIC", "YOURS"))) == "LOADER"
        front.execute(session, f"DROP {kind} yours")
        assert _refused(session, f"CREATE OR REPLACE {kind} {kind[0]}") == "002003"


def test_a_user_stage_is_its_users_own(catalog):
    ann = front.execute(_loader(catalog), "PUT file:///x @~").transfer
    demo = front.execute(Session(catalog, "DEMO", moves_files=True), "PUT file:///x @~").transfer
    assert ann is not None
    assert demo is not None
    assert ann.identity != demo.identity
