"""Logins of the connector protocol: credentials, role, and the names that a session starts with."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from airflow_provider_snowpipe.local.access.credentials import is_access_token
from airflow_provider_snowpipe.local.accounts import Account
from airflow_provider_snowpipe.local.catalog import Catalog
from airflow_provider_snowpipe.local.errors import Refusal, SqlError
from airflow_provider_snowpipe.local.identifiers import read_path
from airflow_provider_snowpipe.local.passwords import Password
from airflow_provider_snowpipe.local.sql.current import use_role, use_schema
from airflow_provider_snowpipe.local.sql.session import Session

_SQLSTATE = "08001"
_PASSWORD_AUTHENTICATORS = frozenset({"", "SNOWFLAKE", "USERNAME_PASSWORD_MFA"})
_PAT = "PROGRAMMATIC_ACCESS_TOKEN"
_TOKEN_REFUSED = {
    "OAUTH": ("390303", "Invalid OAuth access token."),
    _PAT: ("394400", "Programmatic access token is invalid."),
}


class Login:
    """Opens sessions for those whose credentials are right.

    :param account: verifies keys, tokens and the passwords of declared users.
    :param password: verifies the password of the service's own user.
    :param catalog: databases.
    """

    def __init__(self, account: Account, password: Password, catalog: Catalog) -> None:
        self._account = account
        self._password = password
        self._catalog = catalog

    def open(self, data: Mapping[str, Any], query: Mapping[str, str], client_ip: str = "") -> Session:
        """Open the session of a login request, and keep the login in the query history.

        :param data: ``data`` of the request.
        :param query: its query parameters, with the names that the session starts with.
        :param client_ip: address at the other end.
        :raises SqlError: with Snowflake's code for wrong credentials; neither connector retries it.
        """
        access, client = self._catalog.access, str(data.get("CLIENT_APP_ID") or "")[:256]
        try:
            session = self._open(data, query)
        except SqlError as error:
            user, failure = str(data.get("LOGIN_NAME") or "").upper()[:256], (error.code, error.message)
            self._catalog.queries.login(access.now_ms(), user, client_ip, client, None, failure)
            raise
        self._catalog.queries.login(access.now_ms(), session.user, client_ip, client, session.session_id)
        return session

    def _open(self, data: Mapping[str, Any], query: Mapping[str, str]) -> Session:
        user, restricted = self._verify(data)
        session = Session(self._catalog, user, moves_files=True, client=_client(data))
        parameters = data.get("SESSION_PARAMETERS")
        given = parameters if isinstance(parameters, dict) else {}
        for name, value in given.items():
            session.set_parameter(str(name).upper(), value)
        role = restricted or _exact(query.get("roleName", ""))
        if role:
            try:
                use_role(session, role)
            except SqlError as error:
                raise SqlError(
                    "390189",
                    _SQLSTATE,
                    f"Role '{role}' specified in the connect string does not exist or not authorized. "
                    "Contact your local system administrator, or attempt to login with another role, "
                    "e.g. PUBLIC.",
                ) from error
        _apply_names(session, query)
        if str(session.parameters.get("CLIENT_VALIDATE_DEFAULT_PARAMETERS", "")).lower() == "true":
            _check_names(session, query)
        return session

    def _verify(self, data: Mapping[str, Any]) -> tuple[str, str | None]:
        """Return the user whose credentials the login holds, and the role that they are restricted to."""
        authenticator = str(data.get("AUTHENTICATOR") or "").upper()
        if authenticator in _PASSWORD_AUTHENTICATORS:
            return self._by_password(data)
        if authenticator == "SNOWFLAKE_JWT":
            token = str(data.get("TOKEN", ""))
            try:
                return self._account.verify_key_pair(token), self._account.role_in(token)
            except Refusal as refusal:
                raise SqlError("390144", _SQLSTATE, refusal.message) from refusal
        if authenticator in _TOKEN_REFUSED:
            return self._by_token(data, str(data.get("TOKEN", "")), authenticator)
        raise SqlError(
            "390190",
            _SQLSTATE,
            f"The local service does not know the authenticator {authenticator}; use a password, a key pair "
            "(SNOWFLAKE_JWT), a PROGRAMMATIC_ACCESS_TOKEN or OAUTH.",
        )

    def _by_password(self, data: Mapping[str, Any]) -> tuple[str, str | None]:
        name, password = str(data.get("LOGIN_NAME") or ""), str(data.get("PASSWORD") or "")
        # A programmatic access token may take the place of the password.
        if is_access_token(password):
            return self._by_token(data, password, _PAT)
        if self._password.matches(name, password):
            return self._password.user, None
        user = self._account.verify_password(name, password)
        if user is None:
            raise SqlError("390100", _SQLSTATE, "Incorrect username or password was specified.")
        return user, None

    def _by_token(self, data: Mapping[str, Any], token: str, authenticator: str) -> tuple[str, str | None]:
        code, message = _TOKEN_REFUSED[authenticator]
        try:
            user, _ = self._account.verify_original(token, authenticator)
            role = self._account.role_in(token)
        except Refusal as refusal:
            raise SqlError(code, _SQLSTATE, f"{message} {refusal.message}.") from refusal
        name = str(data.get("LOGIN_NAME") or user).upper()
        known = self._catalog.access.state.users[user]
        if name not in {user.upper(), known.login_name.upper()}:
            raise SqlError(
                "390309",
                _SQLSTATE,
                "The user you were trying to authenticate as differs from the user tied to the access token.",
            )
        return user, role


def _client(data: Mapping[str, Any]) -> str:
    """Return which of the clients that read Arrow logs in; empty for any other.

    Snowpark and SQLAlchemy give names of their own as CLIENT_APP_ID; the Python connector below them tells
    the version of Python (observed with 4.8.1).
    """
    name, environment = str(data.get("CLIENT_APP_ID") or ""), data.get("CLIENT_ENVIRONMENT")
    is_python = isinstance(environment, dict) and "PYTHON_VERSION" in environment
    if is_python or name.startswith("Python"):
        return "PYTHON"
    return "JDBC" if name == "JDBC" else ""


def _apply_names(session: Session, query: Mapping[str, str]) -> None:
    """Take database, schema and warehouse of the login, or the user's defaults.

    A wrong or hidden name is no error, as in Snowflake; it leaves the session without that name.
    """
    known = session.catalog.access.state.users.get(session.user)
    session.warehouse = _exact(query.get("warehouse", "")) or (known.default_warehouse if known else None)
    database, schema = _exact(query.get("databaseName", "")), _exact(query.get("schemaName", ""))
    if not database and known is not None and known.default_namespace:
        with contextlib.suppress(SqlError):
            database, *more = read_path(known.default_namespace)[0]
            schema = schema or (more[0] if more else "")
    if database:
        with contextlib.suppress(SqlError):
            use_schema(session, database, None)
            session.schema = None if schema else session.schema
            use_schema(session, database, schema or None)


def _check_names(session: Session, query: Mapping[str, str]) -> None:
    """Refuse a login with a wrong name, for a client that wants its names validated.

    :raises SqlError: 390201.
    """
    found = {
        "database": session.database,
        "schema": session.schema,
        "warehouse": session.warehouse
        if session.warehouse in session.catalog.access.state.warehouses
        else None,
    }
    for kind, parameter in (
        ("database", "databaseName"),
        ("schema", "schemaName"),
        ("warehouse", "warehouse"),
    ):
        if query.get(parameter) and found[kind] != _exact(query[parameter]):
            raise SqlError(
                "390201",
                _SQLSTATE,
                f"The requested {kind} '{query[parameter]}' does not exist or not authorized.",
            )


def _exact(name: str) -> str:
    """Return a name of the login under Snowflake's case rules."""
    return name[1:-1].replace('""', '"') if name[:1] == name[-1:] == '"' and len(name) > 2 else name.upper()
