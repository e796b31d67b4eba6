"""Programmatic access tokens and OAuth: our client and plain REST against the local service."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests

from airflow_provider_snowpipe.streaming.auth import Credentials, OAuthToken, ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import AuthenticationError
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.local_service import LocalService

ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
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


def _client(service: LocalService, credentials: Credentials) -> SnowpipeClient:
    pipe = PipeName.default_for_table("LOCAL", "PUBLIC", "T")
    retry = RetryPolicy(budget_seconds=60)
    return SnowpipeClient(service.url, credentials, pipe, ca_bundle=str(service.ca_file), retry=retry)


@pytest.mark.parametrize(
    "credentials", [ProgrammaticAccessToken("snowpipe-local-pat-wrong"), OAuthToken("a.b.c"), OAuthToken("x")]
)
def test_a_wrong_token_is_refused(local_service: LocalService, credentials: Credentials) -> None:
    with _client(local_service, credentials) as client, pytest.raises(AuthenticationError):
        client.ingest_host()


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
    form["subject_token_type"] = "programmatic_access_token"
    assert _post(local_service, "/oauth/token", form, headers=bearer).status_code == 200
    wrong = {**bearer, "X-Snowflake-Authorization-Token-Type": "OAUTH"}
    assert _post(local_service, "/oauth/token", form, headers=wrong).status_code == 401
