"""Privileges on stages, file formats, loads and pipes, and what is outside of the service."""

from collections.abc import Callable

import pytest
from snowpipe_local.access.model import Securable
from snowpipe_local.errors import SqlError
from snowpipe_local.sql.pipe_loads import compile_pipe
from snowpipe_local.sql.session import Session

Grant = Callable[..., object]
PIPE = "CREATE PIPE p AS COPY INTO t FROM @s"


@pytest.fixture
def local(local):
    local.sql("CREATE FILE FORMAT f TYPE = CSV")
    local.sql("CREATE TABLE t (id INT)")
    local.sql("CREATE ROLE loader")
    local.sql("CREATE USER ann DEFAULT_ROLE = loader")
    local.sql("GRANT ROLE loader TO USER ann")
    return local


@pytest.fixture
def grant(local) -> Grant:
    """Grant privileges to LOADER, who may use the schema."""

    def given(*privileges: str) -> None:
        for privilege in privileges:
            local.sql(f"GRANT {privilege} TO ROLE loader")

    given("USAGE ON DATABASE local", "USAGE ON SCHEMA public")
    return given


@pytest.fixture
def ann(local, grant):
    """A session of ANN with the role LOADER."""
    session = Session(local.catalog, "ANN", "LOCAL", "PUBLIC", moves_files=True)
    yield session
    session.close()


def test_what_no_role_was_granted_stays_hidden(local, ann):
    for statement in (
        "LIST @s", "GET @s file:///tmp", "REMOVE @s", "PUT file:///x @s", "DESC STAGE s", "LIST @%t",
        "DROP STAGE s", "ALTER STAGE s SET COMMENT = 'x'", "DESC FILE FORMAT f", "DROP FILE FORMAT f",
        "SELECT $1 FROM @s",
    ):  # fmt: skip
        assert local.refused(statement, ann).code == "002003", statement
    for statement in ("SHOW STAGES", "SHOW FILE FORMATS"):
        assert local.sql(statement, session=ann) == []


@pytest.mark.parametrize(
    ("privilege", "allowed", "refused"),
    [
        ("READ", ("LIST @s", "GET @s file:///tmp", "DESC STAGE s"), ("PUT file:///x @s", "REMOVE @s")),
        ("READ", (), ("DROP STAGE s", "CREATE OR REPLACE STAGE s")),
        ("WRITE", ("PUT file:///x @s", "REMOVE @s"), ("LIST @s",)),
    ],
)
def test_read_lists_and_downloads_and_write_uploads_and_removes(
    local, ann, grant, privilege: str, allowed: tuple[str, ...], refused: tuple[str, ...]
):
    grant(f"{privilege} ON STAGE s")
    for statement in allowed:
        local.sql(statement, session=ann)
    for statement in refused:
        assert local.refused(statement, ann).code == "003001", statement


def test_purge_writes(local, ann, grant):
    grant("INSERT ON TABLE t", "READ ON STAGE s")
    local.sql("COPY INTO t FROM @s", session=ann)
    assert local.refused("COPY INTO t FROM @s PURGE = TRUE", ann).code == "003001"
    grant("WRITE ON STAGE s")
    local.sql("COPY INTO t FROM @s PURGE = TRUE", session=ann)


def test_what_is_outside_needs_the_right_to_make_a_stage_for_it(local, ann, grant):
    file = local.outside / "a.csv"
    file.write_text("1\n")
    grant("INSERT ON TABLE t")
    url = f"'file://{file.parent}/'"
    local.sql(f"CREATE TEMPORARY STAGE passing URL = {url}", session=ann)
    statements = (
        f"COPY INTO LOCAL.PUBLIC.t FROM {url}", "COPY INTO t FROM @passing PURGE = TRUE", "LIST @passing",
        "RM @passing",
    )  # fmt: skip
    for statement in statements:
        assert local.refused(statement, ann).code == "003001", statement
    ann.schema = None
    assert local.refused(statements[0], ann).code == "003001"
    assert file.exists()
    ann.schema = "PUBLIC"
    grant("CREATE STAGE ON SCHEMA public")
    for statement in statements:
        local.sql(statement, session=ann)
    assert not file.exists()


@pytest.mark.parametrize("kind", ["STAGE", "FILE FORMAT"])
def test_creating_and_moving_need_the_privilege_and_make_the_role_the_owner(local, ann, grant, kind):
    def owner(*name: str) -> str | None:
        return local.catalog.access.owner(Securable(kind, name))

    assert local.refused(f"CREATE {kind} mine", ann).code == "003001"
    local.sql(f"CREATE TEMPORARY {kind} passing", session=ann)
    grant(f"CREATE {kind} ON SCHEMA public")
    local.sql(f"CREATE {kind} mine", session=ann)
    assert owner("LOCAL", "PUBLIC", "MINE") == "LOADER"
    local.sql(f"ALTER {kind} mine RENAME TO yours", session=ann)
    local.sql("CREATE SCHEMA other")
    grant("USAGE ON SCHEMA local.other")
    move = f"ALTER {kind} local.public.yours RENAME TO local.other.yours"
    assert local.refused(move, ann).code == "003001"
    grant(f"CREATE {kind} ON SCHEMA local.other")
    local.sql(move, session=ann)
    assert owner("LOCAL", "OTHER", "YOURS") == "LOADER"
    local.sql(f"DROP {kind} local.other.yours", session=ann)
    assert local.refused(f"CREATE OR REPLACE {kind} local.public.{kind[0]}", ann).code == "002003"


def test_the_history_of_hidden_tables_is_hidden(local, ann, grant):
    local.put("a.csv", b"1\n")
    local.sql("COPY INTO t FROM @s")
    history = "SELECT * FROM TABLE(INFORMATION_SCHEMA.COPY_HISTORY('t', '2020-01-01'::TIMESTAMP_LTZ))"
    assert local.refused(history, ann).code == "002003"
    assert local.sql("SELECT * FROM INFORMATION_SCHEMA.LOAD_HISTORY", session=ann) == []
    grant("SELECT ON TABLE t")
    assert len(local.sql(history, session=ann)) == 1
    assert len(local.sql("SELECT * FROM INFORMATION_SCHEMA.LOAD_HISTORY", session=ann)) == 1


def test_pipes_are_created_operated_monitored_and_dropped_by_privilege(local, ann, grant):
    assert local.refused(PIPE, ann).code == "003001"
    grant("CREATE PIPE ON SCHEMA public", "INSERT ON TABLE t", "READ ON STAGE s")
    local.sql(PIPE, session=ann)
    assert local.sql("SHOW PIPES", session=ann)[0]["owner"] == "LOADER"
    local.sql("GRANT OWNERSHIP ON PIPE p TO ROLE accountadmin")
    assert local.refused("DESC PIPE p", ann).code == "002003"
    assert local.sql("SHOW PIPES", session=ann) == []
    grant("MONITOR ON PIPE p")
    local.sql("SELECT SYSTEM$PIPE_STATUS('p')", session=ann)
    pause = "ALTER PIPE p SET PIPE_EXECUTION_PAUSED = TRUE"
    for statement in (pause, "ALTER PIPE p REFRESH", "DROP PIPE p"):
        assert local.refused(statement, ann).code == "003001"
    grant("OPERATE ON PIPE p")
    local.sql(pause, session=ann)
    assert local.refused("ALTER PIPE p SET COMMENT = 'x'", ann).code == "003001"


def test_copy_needs_insert_and_read_and_a_pipe_loads_with_the_privileges_of_its_owner(local, ann, grant):
    local.put("a.csv", b"1\n")
    grant("CREATE PIPE ON SCHEMA public", "INSERT ON TABLE t")
    for statement in ("COPY INTO t FROM @s", PIPE):
        assert local.refused(statement, ann).code == "002003"
    grant("READ ON STAGE s")
    (loaded,) = local.sql("COPY INTO t FROM @s", session=ann)
    assert loaded["status"] == "LOADED"
    local.sql(PIPE, session=ann)
    pipe = local.database.file_pipes.find("PUBLIC", "P")
    assert pipe is not None
    assert compile_pipe(local.catalog, local.database, pipe).table.name == "T"
    local.sql("REVOKE READ ON STAGE s FROM ROLE loader")
    with pytest.raises(SqlError, match="authorized"):
        compile_pipe(local.catalog, local.database, pipe)
