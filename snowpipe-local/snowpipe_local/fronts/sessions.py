"""Who gets in: token calls, and logins and sessions of the connector protocol."""

from __future__ import annotations

import base64
import contextlib
import re
import secrets
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote_plus

from snowpipe_local.accounts import (
    ACCESS_TOKEN_SECONDS,
    KEY_PAIR,
    OAUTH,
    PAT,
    Account,
    TokenError,
    is_access_token,
    issue_access_token,
    same,
)
from snowpipe_local.catalog import Catalog
from snowpipe_local.errors import Refusal, SqlError
from snowpipe_local.fronts.http import Request, Response
from snowpipe_local.sql.execution import in_background
from snowpipe_local.sql.session import Session, use_role, use_schema
from snowpipe_local.tables import read_path

# -- Token calls: exchange of a credential for a scoped token, and the OAuth token endpoint --------------

TOKEN_TYPE_HEADER = "x-snowflake-authorization-token-type"  # noqa: S105 - the name of a header
_JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_EXCHANGE_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_SUBJECT_TYPES = {PAT: "programmatic_access_token", OAUTH: "urn:ietf:params:oauth:token-type:access_token"}


def exchange(account: Account, request: Request) -> Response:
    """Answer ``POST /oauth/token``: a scoped token as plain text.

    :raises Refusal: 400 for a grant that does not fit the credential, 401 for a wrong credential.
    """
    form = _form(request)
    grant = form.get("grant_type", "")
    if grant not in (_JWT_GRANT, _EXCHANGE_GRANT):
        raise Refusal(
            400, "UNSUPPORTED_GRANT_TYPE", f"grant type '{grant[:80]}': use {_JWT_GRANT} or {_EXCHANGE_GRANT}"
        )
    user, kind = account.verify_original(request.bearer(), request.headers.get(TOKEN_TYPE_HEADER))
    if (kind == KEY_PAIR) != (grant == _JWT_GRANT):
        raise Refusal(400, "INVALID_GRANT", f"grant type {grant} does not fit a {kind} token")
    if kind != KEY_PAIR and form.get("subject_token_type") != _SUBJECT_TYPES[kind]:
        raise Refusal(
            400, "INVALID_REQUEST", f"subject_token_type of a {kind} token must be {_SUBJECT_TYPES[kind]}"
        )
    role = account.role_in(request.bearer())
    return Response.of_text(account.issue_scoped_token(form.get("scope", ""), user, role, request.bearer()))


def access_token(account: Account, request: Request) -> Response:
    """Answer ``POST /oauth/token-request``: an OAuth access token for the client of this service.

    Failures have the shape of RFC 6749 (section 5.2) next to Snowflake's code and message.
    """
    form = _form(request)
    try:
        name, secret = _client(request, form)
    except TokenError as error:
        return _refused(401, "invalid_client", str(error))
    issued = account.issued
    if not same((name, issued.client_id), (secret, issued.client_secret)):
        why = "client id or client secret is wrong; read them from oauth_client.json"
        return _refused(401, "invalid_client", why)
    grant = form.get("grant_type", "")
    if grant == "refresh_token":
        if not same((form.get("refresh_token", ""), issued.refresh_token)):
            why = "the refresh token is wrong; read it from oauth_client.json"
            return _refused(400, "invalid_grant", why)
    elif grant != "client_credentials":
        why = f"grant type '{grant[:80]}': use client_credentials or refresh_token"
        return _refused(400, "unsupported_grant_type", why)
    return Response.of_json(
        {
            "access_token": issue_access_token(account.secret, account.user, form.get("scope", "")),
            "token_type": "Bearer",
            "expires_in": ACCESS_TOKEN_SECONDS,
        }
    )


def _refused(status: int, error: str, message: str) -> Response:
    return Response.of_json(
        {"error": error, "error_description": message, "code": error.upper(), "message": message}, status
    )


def _client(request: Request, form: dict[str, str]) -> tuple[str, str]:
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return form.get("client_id", ""), form.get("client_secret", "")
    try:
        name, _, secret = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError as error:
        raise TokenError("the Basic authorization header is not base64 of id:secret") from error
    return unquote_plus(name), unquote_plus(secret)


def _form(request: Request) -> dict[str, str]:
    fields = parse_qs(request.body.decode("utf-8", errors="replace"), keep_blank_values=True)
    return {name: values[0] for name, values in fields.items()}


# -- Logins and sessions of the connector protocol: credentials, tokens, and what ends a session ---------


def now() -> float:
    """Return the machine's monotonic time in seconds."""
    return time.monotonic()


class Sessions:
    """Open sessions by the tokens that their clients hold.

    A session ends when its client logs out, when nothing was asked of it for a while, and at once when its
    user is disabled or dropped or loses the session's role, or the key or access token that opened it.

    :param account: knows which users there are, and every change of them.
    :param idle_seconds: a session without a request for so long ends.
    """

    def __init__(self, account: Account, idle_seconds: float) -> None:
        self._account = account
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._by_token: dict[str, Session] = {}
        account.access.on_change(self._end_dead)

    def add(self, session: Session) -> tuple[str, str]:
        """Open a session.

        :returns: session token and master token.
        """
        session.used_at = now()
        self._end_dead()
        return self.renew(session)

    def renew(self, session: Session) -> tuple[str, str]:
        """Return two further tokens of an open session."""
        token, master = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        with self._lock:
            self._by_token[token] = self._by_token[master] = session
        return token, master

    def find(self, token: str) -> Session | None:
        """Return the session of a token, and count that as use; None when it has ended."""
        with self._lock:
            session = self._by_token.get(token)
        if session is None:
            return None
        if not self._is_alive(session):
            self._end([session])
            return None
        session.used_at = now()
        return session

    def close(self, session: Session) -> None:
        """End a session whose client logs out; a statement that still runs goes to its end."""
        self._remove({id(session)})
        session.close()

    def _is_alive(self, session: Session) -> bool:
        return (
            self._account.still_knows(*session.opened_by)
            and self._account.access.may_use(session.user, session.role)
            # A statement that runs for hours is use of its session.
            and (session.is_busy or now() - session.used_at < self._idle_seconds)
        )

    def _end_dead(self) -> None:
        with self._lock:
            ended = [known for known in self._by_token.values() if not self._is_alive(known)]
        self._end(ended)

    def _end(self, ended: list[Session]) -> None:
        sessions = {id(session): session for session in ended}
        self._remove(sessions.keys())
        for session in sessions.values():
            # The statement that ended the session may be its own.
            in_background(session.end)

    def _remove(self, sessions: Collection[int]) -> None:
        with self._lock:
            self._by_token = {
                token: known for token, known in self._by_token.items() if id(known) not in sessions
            }


# -- Logins of the connector protocol: credentials, role, and the names that a session starts with -------

_SQLSTATE = "08001"
_PASSWORD_AUTHENTICATORS = frozenset({"", "SNOWFLAKE", "USERNAME_PASSWORD_MFA"})
_PAT = "PROGRAMMATIC_ACCESS_TOKEN"
_TOKEN_REFUSED = {
    "OAUTH": ("390303", "Invalid OAuth access token."),
    _PAT: ("394400", "Programmatic access token is invalid."),
}


def open_session(
    account: Account, catalog: Catalog, data: Mapping[str, Any], query: Mapping[str, str], client_ip: str
) -> Session:
    """Open the session of a login request, and keep the login in the query history.

    :param query: its query parameters, with the names that the session starts with.
    :raises SqlError: with Snowflake's code for wrong credentials; neither connector retries it.
    """
    access, client = catalog.access, str(data.get("CLIENT_APP_ID") or "")[:256]
    try:
        session = _new_session(account, catalog, data, query)
    except SqlError as error:
        user, failure = str(data.get("LOGIN_NAME") or "").upper()[:256], (error.code, error.message)
        catalog.queries.login(access.now_ms(), user, client_ip, client, None, failure)
        raise
    catalog.queries.login(access.now_ms(), session.user, client_ip, client, session.session_id)
    return session


def _new_session(
    account: Account, catalog: Catalog, data: Mapping[str, Any], query: Mapping[str, str]
) -> Session:
    user, restricted, credential = _verify(account, data)
    session = Session(
        catalog,
        user,
        moves_files=True,
        client=_client_kind(data),
        credential=credential,
        only_role=restricted,
    )
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


_Verified = tuple[str, str | None, str | None]


def _verify(account: Account, data: Mapping[str, Any]) -> _Verified:
    """Return the user whose credentials the login holds, the role that they are restricted to, their mark."""
    authenticator = str(data.get("AUTHENTICATOR") or "").upper()
    if authenticator in _PASSWORD_AUTHENTICATORS:
        return _by_password(account, data)
    if authenticator == "SNOWFLAKE_JWT":
        token = str(data.get("TOKEN", ""))
        try:
            return account.verify_key_pair(token), account.role_in(token), account.mark(token)
        except Refusal as refusal:
            raise SqlError("390144", _SQLSTATE, refusal.message) from refusal
    if authenticator in _TOKEN_REFUSED:
        return _by_token(account, data, str(data.get("TOKEN", "")), authenticator)
    raise SqlError(
        "390190",
        _SQLSTATE,
        f"The local service does not know the authenticator {authenticator}; use a password, a key pair "
        "(SNOWFLAKE_JWT), a PROGRAMMATIC_ACCESS_TOKEN or OAUTH.",
    )


def _by_password(account: Account, data: Mapping[str, Any]) -> _Verified:
    name, password = str(data.get("LOGIN_NAME") or ""), str(data.get("PASSWORD") or "")
    # A programmatic access token may replace the password.
    if is_access_token(password):
        return _by_token(account, data, password, _PAT)
    user = account.verify_password(name, password)
    if user is None:
        raise SqlError("390100", _SQLSTATE, "Incorrect username or password was specified.")
    return user, None, None


def _by_token(account: Account, data: Mapping[str, Any], token: str, authenticator: str) -> _Verified:
    code, message = _TOKEN_REFUSED[authenticator]
    try:
        user, _ = account.verify_original(token, authenticator)
        role = account.role_in(token)
    except Refusal as refusal:
        raise SqlError(code, _SQLSTATE, f"{message} {refusal.message}.") from refusal
    name = str(data.get("LOGIN_NAME") or user).upper()
    known = account.access.state.users[user]
    if name not in {user.upper(), known.login_name.upper()}:
        why = "The user you were trying to authenticate as differs from the user tied to the access token."
        raise SqlError("390309", _SQLSTATE, why)
    return user, role, account.mark(token)


# The first JDBC that sends a token to an ``endPoint`` of GCS: earlier ones send it to Google's own host.
_ENDPOINT_OF_GCS = (3, 22)


def _client_kind(data: Mapping[str, Any]) -> str:
    """Return which of the clients that are answered in a way of their own logs in; empty for any other.

    Snowpark and SQLAlchemy give names of their own as CLIENT_APP_ID; the Python connector below them reports
    the version of Python (observed with 4.8.1).
    """
    name, environment = str(data.get("CLIENT_APP_ID") or ""), data.get("CLIENT_ENVIRONMENT")
    is_python = isinstance(environment, dict) and "PYTHON_VERSION" in environment
    if is_python or name.startswith("Python"):
        return "PYTHON"
    if name == "JDBC" and _version(data) < _ENDPOINT_OF_GCS:
        return "OLD_JDBC"
    return name.upper() if name in {"JDBC", "Go"} else ""


def _version(data: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(data.get("CLIENT_APP_VERSION") or ""))[:2])


def _apply_names(session: Session, query: Mapping[str, str]) -> None:
    """Take database, schema and warehouse of the login, or the user's defaults.

    A wrong or hidden name is not an error, as in Snowflake; it leaves the session without that name.
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
    """Refuse a login with a wrong name, for a client that requests the validation of its names.

    :raises SqlError: 390201.
    """
    known = session.catalog.access.state.warehouses
    for kind, parameter, found in (
        ("database", "databaseName", session.database),
        ("schema", "schemaName", session.schema),
        ("warehouse", "warehouse", session.warehouse if session.warehouse in known else None),
    ):
        if query.get(parameter) and found != _exact(query[parameter]):
            why = f"The requested {kind} '{query[parameter]}' does not exist or not authorized."
            raise SqlError("390201", _SQLSTATE, why)


def _exact(name: str) -> str:
    """Return a name of the login under Snowflake's case rules."""
    return name[1:-1].replace('""', '"') if name[:1] == name[-1:] == '"' and len(name) > 2 else name.upper()
