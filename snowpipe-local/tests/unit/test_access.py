"""Users, roles and grants: who holds what, who inherits it, and what a session may do."""

import stat

import pytest
from snowpipe_local.access import model
from snowpipe_local.access.access import Access
from snowpipe_local.access.model import FutureGrant, Grant, Role, RoleGrant, Securable, User
from snowpipe_local.catalog import Catalog
from snowpipe_local.errors import DataDirectoryError
from snowpipe_local.faults import Faults

DATABASE, SCHEMA = Securable("DATABASE", ("LOCAL",)), Securable("SCHEMA", ("LOCAL", "PUBLIC"))
TABLE = Securable("TABLE", ("LOCAL", "PUBLIC", "T"))


def _grant(access: Access, role: str, *pairs: tuple[str, Securable]) -> None:
    with access.change() as state:
        for privilege, target in pairs:
            grant = Grant(privilege, target, role, "ACCOUNTADMIN", 0)
            state.grants[model.grant_key(grant)] = grant


def test_future_grants_of_the_schema_replace_those_of_the_database():
    access = Access()
    with access.change() as state:
        for privilege, scope in (("INSERT", DATABASE), ("SELECT", SCHEMA)):
            future = FutureGrant(privilege, "TABLE", scope, "READER", 0)
            state.future_grants[model.future_key(future)] = future
    access.created(TABLE, "SYSADMIN")
    assert access.owner(TABLE) == "SYSADMIN"
    assert access.held({"READER"}, TABLE) == {"SELECT"}
    elsewhere = Securable("TABLE", ("LOCAL", "OTHER", "T"))
    access.created(elsewhere, "SYSADMIN")
    assert access.held({"READER"}, elsewhere) == {"INSERT"}


def test_everything_is_in_a_private_file_and_comes_back(tmp_path):
    file = tmp_path / "access.json"
    access = Access(file)
    given = RoleGrant("READER", "USER", "ANN", "ACCOUNTADMIN", 0)
    with access.change() as state:
        state.roles["READER"] = Role("READER", "USERADMIN", 0)
        state.users["ANN"] = User("ANN", "USERADMIN", 0, default_role="READER")
        state.role_grants[model.role_grant_key(given)] = given
    _grant(access, "READER", ("SELECT", TABLE))
    access.created(Securable("STAGE", ("LOCAL", "PUBLIC", "S")), "READER")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Access(file).state == access.state
    file.write_text("{}")
    with pytest.raises(DataDirectoryError, match=r"access\.json"):
        Access(file)


def test_a_change_that_fails_changes_nothing(tmp_path):
    access = Access(tmp_path / "access.json")
    before = access.state

    def fail() -> None:
        with access.change() as state:
            state.roles.clear()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert access.state == before == Access(tmp_path / "access.json").state


def test_grants_on_tables_that_are_gone_are_forgotten_at_the_next_start(tmp_path):
    access = Access()
    _grant(
        access, "READER", ("SELECT", TABLE), ("USAGE", SCHEMA), ("USAGE", Securable("DATABASE", ("GONE",)))
    )
    Catalog(tmp_path, Faults(), access=access).close()
    assert {key[0] for key in access.state.grants if key[1] == "READER"} == {SCHEMA}
