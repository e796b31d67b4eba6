"""Token calls: exchange of a credential for a scoped token, and the OAuth token endpoint."""

from __future__ import annotations

import base64
from urllib.parse import parse_qs, unquote_plus

from airflow_provider_snowpipe.local.accounts import (
    ACCESS_TOKEN_SECONDS,
    KEY_PAIR,
    OAUTH,
    PAT,
    Account,
    TokenError,
    issue_access_token,
)
from airflow_provider_snowpipe.local.errors import Refusal
from airflow_provider_snowpipe.local.fronts.http import Request, Response

TOKEN_TYPE_HEADER = "x-snowflake-authorization-token-type"  # noqa: S105 - the name of a header
_JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_EXCHANGE_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_SUBJECT_TYPES = {
    PAT: "programmatic_access_token",
    OAUTH: "urn:ietf:params:oauth:token-type:access_token",
}


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
        account.issued.check_client(*_client(request, form))
    except TokenError as error:
        return _refused(401, "invalid_client", str(error))
    grant = form.get("grant_type", "")
    if grant == "refresh_token":
        try:
            account.issued.check_refresh_token(form.get("refresh_token", ""))
        except TokenError as error:
            return _refused(400, "invalid_grant", str(error))
    elif grant != "client_credentials":
        return _refused(
            400,
            "unsupported_grant_type",
            f"grant type '{grant[:80]}': use client_credentials or refresh_token",
        )
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
