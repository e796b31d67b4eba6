"""Applying a declaration of users, roles and grants; twice has the same effect as once."""

from __future__ import annotations

import dataclasses

from airflow_provider_snowpipe.local.access import changes
from airflow_provider_snowpipe.local.access.access import ACCOUNT_OBJECT
from airflow_provider_snowpipe.local.access.config import Declaration, DeclaredGrant, DeclaredUser
from airflow_provider_snowpipe.local.access.credentials import check_password, digest_password, digest_token
from airflow_provider_snowpipe.local.access.model import (
    ACCOUNTADMIN,
    OWNERSHIP,
    USERADMIN,
    AccessToken,
    Role,
    Securable,
    User,
)
from airflow_provider_snowpipe.local.access.store import AccessState
from airflow_provider_snowpipe.local.catalog import Catalog
from airflow_provider_snowpipe.local.errors import ConfigurationError, SqlError
from airflow_provider_snowpipe.local.sql.grants import inside, locate
from airflow_provider_snowpipe.local.sql.session import Session

_PAT_NAME = "DECLARED"


def apply(declaration: Declaration, catalog: Catalog, user: str) -> None:
    """Bring users, roles and grants in line with the file; what it does not name stays as it is.

    :param user: the service's own user, as whom objects are looked up.
    :raises ConfigurationError: for a role, user or object that does not exist; nothing is changed then.
    """
    access = catalog.access
    session = Session(catalog, user)
    with access.change() as state:
        now = access.now_ms()
        for role in declaration.roles:
            known = state.roles.get(role.name) or Role(role.name, USERADMIN, now)
            comment = known.comment if role.comment is None else role.comment
            state.roles[role.name] = dataclasses.replace(known, comment=comment)
        for declared in declaration.users:
            state.users[declared.name] = _user(state.users.get(declared.name), declared, now)
        _inherit(declaration, state, now)
        for grant in declaration.grants:
            _grant(declaration, state, session, grant, now)
    session.close()


def _inherit(declaration: Declaration, state: AccessState, now: int) -> None:
    for role in declaration.roles:
        for below in role.inherits:
            _check_role(declaration, state, below, f"roles.{role.name}.inherits")
            try:
                changes.give_role(state, below, "ROLE", role.name, USERADMIN, now)
            except SqlError as error:
                raise ConfigurationError(
                    f"{declaration.file}: roles.{role.name}.inherits: {error.message.splitlines()[-1]}"
                ) from error
    for declared in declaration.users:
        for role_name in declared.roles:
            _check_role(declaration, state, role_name, f"users.{declared.name}.roles")
            changes.give_role(state, role_name, "USER", declared.name, USERADMIN, now)
        default = state.users[declared.name].default_role
        if default is not None and (default, "USER", declared.name) not in state.role_grants:
            raise ConfigurationError(
                f"{declaration.file}: users.{declared.name}.default_role: role '{default}' is not granted to "
                f"the user; add it to users.{declared.name}.roles"
            )


def _check_role(declaration: Declaration, state: AccessState, role: str, where: str) -> None:
    if role not in state.roles:
        raise ConfigurationError(
            f"{declaration.file}: {where}: role '{role}' does not exist; declare it as [roles.{role}]"
        )


def _user(known: User | None, declared: DeclaredUser, now: int) -> User:
    user = known or User(declared.name, USERADMIN, now)
    texts = {
        name: value.upper() if name in {"default_role", "default_warehouse"} else value
        for name, value in declared.texts.items()
    }
    keys = tuple(new or old for new, old in zip(declared.public_keys, user.public_keys, strict=True))
    password = user.password
    # The digest is salted: an unchanged password keeps its digest, so that the file stays as it is.
    if declared.password is not None and not check_password(declared.password, password):
        password = digest_password(declared.password)
    tokens = user.access_tokens
    if declared.pat is not None:
        made = AccessToken(_PAT_NAME, digest_token(declared.pat))
        tokens = (*(token for token in tokens if token.name != _PAT_NAME), made)
    return dataclasses.replace(
        user,
        **texts,  # type: ignore[arg-type]
        public_keys=(keys[0], keys[1]),
        password=password,
        access_tokens=tokens,
        disabled=declared.disabled,
        default_secondary_roles="ALL" if declared.secondary_roles else "",
    )


def _grant(
    declaration: Declaration, state: AccessState, session: Session, grant: DeclaredGrant, now: int
) -> None:
    _check_role(declaration, state, grant.role, f"{grant.where}.role")
    try:
        if grant.future:
            scope = locate(session, grant.scope, grant.path)
            changes.grant_future(state, grant.privileges, grant.kind, scope, grant.role, now, False)
            return
        targets = _targets(session, grant)
    except SqlError as error:
        raise ConfigurationError(
            f"{declaration.file}: {grant.where}: {error.message.splitlines()[-1]} Create it first, or "
            "declare the grant with future = true and in = 'SCHEMA database.schema'."
        ) from error
    for target in targets:
        if OWNERSHIP in grant.privileges:
            changes.transfer(state, target, grant.role, ACCOUNTADMIN, now, "COPY")
        else:
            changes.grant(state, grant.privileges, target, grant.role, ACCOUNTADMIN, now, False)


def _targets(session: Session, grant: DeclaredGrant) -> list[Securable]:
    if grant.kind == ACCOUNT_OBJECT.kind:
        return [ACCOUNT_OBJECT]
    if grant.scope:
        return inside(session, grant.kind, locate(session, grant.scope, grant.path))
    return [locate(session, grant.kind, grant.path)]
