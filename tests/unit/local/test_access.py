"""Users, roles and grants: who holds what, who inherits it, and what a session may do."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_snowpipe.local.access import store
from airflow_provider_snowpipe.local.access.access import Access
from airflow_provider_snowpipe.local.access.model import (
    FutureGrant,
    Grant,
    Role,
    RoleGrant,
    Securable,
    User,
    read_privileges,
)
from airflow_provider_snowpipe.local.catalog import Catalog
from airflow_provider_snowpipe.local.errors import DataDirectoryError, SqlError
from airflow_provider_snowpipe.local.faults import Faults
from airflow_provider_snowpipe.local.sql import front
from airflow_provider_snowpipe.local.sql.session import Session

DATABASE, SCHEMA = Securable("DATABASE", ("LOCAL",)), Securable("SCHEMA", ("LOCAL", "PUBLIC"))
TABLE = Securable("TABLE", ("LOCAL", "PUBLIC", "T"))


def _grant(access: Access, role: str, *pairs: tuple[str, Securable]) -> None:
    with access.change() as state:
        for privilege, target in pairs:
            grant = Grant(privilege, target, role, "ACCOUNTADMIN", 0)
            state.grants[store.grant_key(grant)] = grant


def _give(access: Access, role: str, kind: str, grantee: str) -> None:
    with access.change() as state:
        given = RoleGrant(role, kind, grantee, "ACCOUNTADMIN", 0)
        state.role_grants[store.role_grant_key(given)] = given


def _with_reader(access: Access) -> None:
    with access.change() as state:
        state.roles["READER"] = Role("READER", "USERADMIN", 0)
        state.users["ANN"] = User("ANN", "USERADMIN", 0, default_role="READER")
    _give(access, "READER", "USER", "ANN")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    access = Access()
    _with_reader(access)
    catalog = Catalog(tmp_path, Faults(), access=access)
    front.execute(Session(catalog, "DEMO", "LOCAL", "PUBLIC"), "CREATE TABLE t (id INT)")
    yield catalog
    catalog.close()


def test_demo_starts_as_accountadmin_and_an_unknown_user_as_public() -> None:
    access = Access()
    assert access.default_role("DEMO") == "ACCOUNTADMIN"
    assert access.default_role("NOBODY") == "PUBLIC"
    assert access.closure({"ACCOUNTADMIN"}) == {
        "ACCOUNTADMIN",
        "SYSADMIN",
        "SECURITYADMIN",
        "USERADMIN",
        "PUBLIC",
    }


def test_a_role_inherits_what_is_granted_to_the_roles_below_it() -> None:
    access = Access()
    _with_reader(access)
    _grant(access, "READER", ("SELECT", TABLE))
    assert not access.allows(access.closure({"SYSADMIN"}), "SELECT", TABLE)
    _give(access, "READER", "ROLE", "SYSADMIN")
    assert access.allows(access.closure({"ACCOUNTADMIN"}), "SELECT", TABLE)
    assert access.may_use("DEMO", "READER")
    assert not access.may_use("ANN", "SYSADMIN")


def test_an_object_shows_only_with_a_privilege_on_it_and_usage_above_it() -> None:
    access = Access()
    roles = {"READER"}
    _grant(access, "READER", ("SELECT", TABLE))
    assert not access.can_see(roles, TABLE)
    _grant(access, "READER", ("USAGE", DATABASE), ("USAGE", SCHEMA))
    assert access.can_see(roles, TABLE)
    assert not access.can_see(roles, Securable("TABLE", ("LOCAL", "PUBLIC", "OTHER")))


def test_a_session_without_usage_is_told_that_nothing_exists(catalog: Catalog) -> None:
    session = Session(catalog, "ANN", "LOCAL", "PUBLIC")
    assert session.role == "READER"
    with pytest.raises(SqlError) as error:
        session.require("SELECT", "TABLE", "LOCAL", "PUBLIC", "T")
    assert error.value.code == "002003"
    assert "Database 'LOCAL' does not exist or not authorized" in error.value.message
    _grant(catalog.access, "READER", ("USAGE", DATABASE))
    with pytest.raises(SqlError, match=r"Schema 'LOCAL\.PUBLIC' does not exist"):
        session.require("SELECT", "TABLE", "LOCAL", "PUBLIC", "T")
    _grant(catalog.access, "READER", ("USAGE", SCHEMA))
    with pytest.raises(SqlError, match=r"Table 'LOCAL\.PUBLIC\.T' does not exist"):
        session.require("SELECT", "TABLE", "LOCAL", "PUBLIC", "T")


def test_a_visible_object_that_may_not_be_used_that_way_is_003001(catalog: Catalog) -> None:
    _grant(catalog.access, "READER", ("USAGE", DATABASE), ("USAGE", SCHEMA), ("SELECT", TABLE))
    session = Session(catalog, "ANN", "LOCAL", "PUBLIC")
    session.require("SELECT", "TABLE", "LOCAL", "PUBLIC", "T")
    for privilege, kind, path in (
        ("INSERT", "TABLE", ("LOCAL", "PUBLIC", "T")),
        ("CREATE TABLE", "SCHEMA", ("LOCAL", "PUBLIC")),
        ("CREATE SCHEMA", "DATABASE", ("LOCAL",)),
    ):
        with pytest.raises(SqlError) as error:
            session.require(privilege, kind, *path)
        assert (error.value.code, error.value.sqlstate) == ("003001", "42501")
        assert f"Insufficient privileges to operate on {kind.lower()} '{path[-1]}'" in error.value.message
    with pytest.raises(SqlError, match="Insufficient privileges to operate on account 'LOCAL'"):
        session.require_global("CREATE DATABASE")


def test_all_secondary_roles_add_their_privileges(catalog: Catalog) -> None:
    session = Session(catalog, "DEMO", "LOCAL", "PUBLIC", role="READER")
    with pytest.raises(SqlError):
        session.require("SELECT", "TABLE", "LOCAL", "PUBLIC", "T")
    session.secondary_roles = True
    session.require("SELECT", "TABLE", "LOCAL", "PUBLIC", "T")


def test_future_grants_of_the_schema_replace_those_of_the_database() -> None:
    access = Access()
    with access.change() as state:
        for privilege, scope in (("INSERT", DATABASE), ("SELECT", SCHEMA)):
            future = FutureGrant(privilege, "TABLE", scope, "READER", 0)
            state.future_grants[store.future_key(future)] = future
    access.created(TABLE, "SYSADMIN")
    assert access.owner(TABLE) == "SYSADMIN"
    assert access.held({"READER"}, TABLE) == {"SELECT"}
    elsewhere = Securable("TABLE", ("LOCAL", "OTHER", "T"))
    access.created(elsewhere, "SYSADMIN")
    assert access.held({"READER"}, elsewhere) == {"INSERT"}


def test_grants_die_with_their_object_and_follow_a_renamed_one() -> None:
    access = Access()
    _grant(access, "READER", ("SELECT", TABLE), ("USAGE", SCHEMA))
    moved = Securable("SCHEMA", ("LOCAL", "MOVED"))
    access.renamed(SCHEMA, moved)
    assert access.held({"READER"}, Securable("TABLE", ("LOCAL", "MOVED", "T"))) == {"SELECT"}
    assert not access.held({"READER"}, TABLE)
    access.dropped(moved)
    assert not access.held({"READER"}, Securable("TABLE", ("LOCAL", "MOVED", "T")))
    _grant(access, "READER", ("SELECT", TABLE))
    access.created(TABLE, "SYSADMIN")
    assert not access.held({"READER"}, TABLE)


def test_everything_is_in_a_private_file_and_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "access.json"
    access = Access(file)
    _with_reader(access)
    _grant(access, "READER", ("SELECT", TABLE))
    access.created(Securable("STAGE", ("LOCAL", "PUBLIC", "S")), "READER")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Access(file).state == access.state
    file.write_text("{}")
    with pytest.raises(DataDirectoryError, match=r"access\.json does not hold"):
        Access(file)


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    access = Access(tmp_path / "access.json")
    before = access.state

    def fail() -> None:
        with access.change() as state:
            state.roles.clear()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert access.state == before == Access(tmp_path / "access.json").state


def test_grants_on_tables_that_are_gone_are_forgotten_at_the_next_start(tmp_path: Path) -> None:
    access = Access()
    _grant(
        access, "READER", ("SELECT", TABLE), ("USAGE", SCHEMA), ("USAGE", Securable("DATABASE", ("GONE",)))
    )
    Catalog(tmp_path, Faults(), access=access).close()
    assert {key[0] for key in access.state.grants if key[1] == "READER"} == {SCHEMA}


def test_a_privilege_of_another_kind_of_object_is_refused() -> None:
    assert read_privileges(["create  file   format"], "SCHEMA", ("A", "B")) == ["CREATE FILE FORMAT"]
    with pytest.raises(
        SqlError, match="privilege SELECT does not exist for PIPE; there are MONITOR, OPERATE"
    ):
        read_privileges(["select"], "PIPE", ("A", "B", "P"))
