import pytest
from snowpipe_local.errors import SqlError
from snowpipe_local.sql.pipe_loads import compile_pipe
from tests.local_catalog import LocalCatalog

PIPE = "CREATE PIPE p AS COPY INTO t FROM @s"


@pytest.fixture
def local(local):
    for statement in (
        "CREATE TABLE t (id INT)", "CREATE ROLE loader", "GRANT ROLE loader TO USER demo",
        "GRANT USAGE ON DATABASE local TO ROLE loader", "GRANT USAGE ON SCHEMA public TO ROLE loader",
    ):  # fmt: skip
        local.sql(statement)
    local.put("a.csv", b"1\n")
    return local


@pytest.fixture
def loader(local):
    session = local.new_session()
    session.role = "LOADER"
    session.secondary_roles = False
    yield session
    session.close()


def grant(local: LocalCatalog, *privileges: str) -> None:
    for privilege in privileges:
        local.sql(f"GRANT {privilege} TO ROLE loader")


def test_the_history_of_hidden_tables_is_hidden(local, loader):
    local.sql("COPY INTO t FROM @s")
    history = "SELECT * FROM TABLE(INFORMATION_SCHEMA.COPY_HISTORY('t', '2020-01-01'::TIMESTAMP_LTZ))"
    assert local.refused(history, session=loader).code == "002003"
    assert local.sql("SELECT * FROM INFORMATION_SCHEMA.LOAD_HISTORY", session=loader) == []
    grant(local, "SELECT ON TABLE t")
    assert len(local.sql(history, session=loader)) == 1
    assert len(local.sql("SELECT * FROM INFORMATION_SCHEMA.LOAD_HISTORY", session=loader)) == 1


def test_pipes_are_created_operated_monitored_and_dropped_by_privilege(local, loader):
    assert local.refused(PIPE, session=loader).code == "003001"
    grant(local, "CREATE PIPE ON SCHEMA public", "INSERT ON TABLE t", "READ ON STAGE s")
    local.sql(PIPE, session=loader)
    assert local.sql("SHOW PIPES", session=loader)[0]["owner"] == "LOADER"
    local.sql("GRANT OWNERSHIP ON PIPE p TO ROLE accountadmin")
    assert local.refused("DESC PIPE p", session=loader).code == "002003"
    assert local.sql("SHOW PIPES", session=loader) == []
    grant(local, "MONITOR ON PIPE p")
    local.sql("SELECT SYSTEM$PIPE_STATUS('p')", session=loader)
    pause = "ALTER PIPE p SET PIPE_EXECUTION_PAUSED = TRUE"
    for statement in (pause, "ALTER PIPE p REFRESH", "DROP PIPE p"):
        assert local.refused(statement, session=loader).code == "003001"
    grant(local, "OPERATE ON PIPE p")
    local.sql(pause, session=loader)
    assert local.refused("ALTER PIPE p SET COMMENT = 'x'", session=loader).code == "003001"


def test_copy_needs_insert_and_read_and_a_pipe_loads_with_the_privileges_of_its_owner(local, loader):
    grant(local, "CREATE PIPE ON SCHEMA public", "INSERT ON TABLE t")
    for statement in ("COPY INTO t FROM @s", PIPE):
        assert local.refused(statement, session=loader).code == "002003"
    grant(local, "READ ON STAGE s")
    (loaded,) = local.sql("COPY INTO t FROM @s", session=loader)
    assert loaded["status"] == "LOADED"
    local.sql(PIPE, session=loader)
    pipe = local.database.file_pipes.find("PUBLIC", "P")
    assert pipe is not None
    assert compile_pipe(local.catalog, local.database, pipe).table.name == "T"
    local.sql("REVOKE READ ON STAGE s FROM ROLE loader")
    with pytest.raises(SqlError, match="authorized"):
        compile_pipe(local.catalog, local.database, pipe)
