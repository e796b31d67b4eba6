"""Programmatic access tokens and OAuth, with plain requests."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests
from snowpipe_local.testing import LocalService

ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
PAT = "programmatic_access_token"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"


def _pat(service: LocalService) -> str:
    return (service.data_dir / "demo_pat").read_text().strip()


def _oauth_client(service: LocalService) -> dict[str, str]:
    client: dict[str, str] = json.loads((service.data_dir / "oauth_client.json").read_text())
    return client


def _post(service: LocalService, path: str, form: dict[str, str], **more: Any) -> requests.Response:
    with requests.Session() as http:
        http.trust_env = False
        return http.post(service.url + path, data=form, verify=str(service.ca_file), timeout=(5, 30), **more)


@pytest.mark.parametrize(
    ("token", "grant"),
    [
        ("snowpipe-local-pat-wrong", {"grant_type": EXCHANGE, "subject_token_type": PAT}),
        ("a.b.c", {"grant_type": EXCHANGE, "subject_token_type": ACCESS_TOKEN}),
        ("x", {"grant_type": EXCHANGE, "subject_token_type": ACCESS_TOKEN}),
        ("a.b.c", {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer"}),
    ],
)
def test_a_wrong_token_is_refused(local_service: LocalService, token: str, grant: dict[str, str]) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    answer = _post(local_service, "/oauth/token", {**grant, "scope": "127.0.0.1"}, headers=headers)
    assert answer.status_code == 401


def test_the_refresh_flow_takes_the_client_from_basic_authorization(local_service: LocalService) -> None:
    client = _oauth_client(local_service)
    form = {"grant_type": "refresh_token", "refresh_token": client["refresh_token"]}
    basic = (client["client_id"], client["client_secret"])
    answer = _post(local_service, "/oauth/token-request", form, auth=basic)
    assert answer.status_code == 200
    assert answer.json()["expires_in"] == 3600
    scoped = _post(
        local_service,
        "/oauth/token",
        {"grant_type": EXCHANGE, "scope": "127.0.0.1", "subject_token_type": ACCESS_TOKEN},
        headers={"Authorization": f"Bearer {answer.json()['access_token']}"},
    )
    assert scoped.status_code == 200
    # A scoped token opens the data plane; it cannot be exchanged again.
    again = _post(
        local_service,
        "/oauth/token",
        {"grant_type": EXCHANGE, "scope": "127.0.0.1", "subject_token_type": ACCESS_TOKEN},
        headers={"Authorization": f"Bearer {scoped.text}"},
    )
    assert again.status_code == 401


@pytest.mark.parametrize(
    ("form", "auth", "status", "error"),
    [
        ({"grant_type": "client_credentials"}, None, 401, "invalid_client"),
        ({"grant_type": "client_credentials"}, ("x", "y"), 401, "invalid_client"),
        ({"grant_type": "refresh_token", "refresh_token": "x"}, "right", 400, "invalid_grant"),
        ({"grant_type": "password"}, "right", 400, "unsupported_grant_type"),
    ],
)
def test_a_refused_token_request_has_oauths_shape(
    local_service: LocalService, form: dict[str, str], auth: Any, status: int, error: str
) -> None:
    client = _oauth_client(local_service)
    basic = (client["client_id"], client["client_secret"]) if auth == "right" else auth
    answer = _post(local_service, "/oauth/token-request", form, auth=basic)
    assert (answer.status_code, answer.json()["error"]) == (status, error)


def test_subject_and_header_must_name_the_kind_of_the_token(local_service: LocalService) -> None:
    bearer = {"Authorization": f"Bearer {_pat(local_service)}"}
    form = {"grant_type": EXCHANGE, "scope": "127.0.0.1", "subject_token_type": ACCESS_TOKEN}
    assert _post(local_service, "/oauth/token", form, headers=bearer).status_code == 400
    form["subject_token_type"] = PAT
    assert _post(local_service, "/oauth/token", form, headers=bearer).status_code == 200
    wrong = {**bearer, "X-Snowflake-Authorization-Token-Type": "OAUTH"}
    assert _post(local_service, "/oauth/token", form, headers=wrong).status_code == 401
