"""Privileges on stages, file formats and what is outside of the service."""

from collections.abc import Callable

import pytest
from snowpipe_local.access.model import Securable
from snowpipe_local.sql.session import Session

Grant = Callable[[str], object]


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
    """Grant a privilege to LOADER, who may use the schema."""

    def given(privilege: str) -> None:
        local.sql(f"GRANT {privilege} TO ROLE loader")

    given("USAGE ON DATABASE local")
    given("USAGE ON SCHEMA public")
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
    grant("INSERT ON TABLE t")
    grant("READ ON STAGE s")
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
