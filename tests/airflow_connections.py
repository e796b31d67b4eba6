"""Airflow without its database: a home of its own, and connections that come from the environment."""

import atexit
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Airflow reads these when it is first imported.
if "AIRFLOW_HOME" not in os.environ:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="snowpipe-test-airflow-")
    atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.scripted_service import Reply, ScriptedService

PASSPHRASE = "passphrase-of-the-key"
PAT = "pat-secret-0123456789"

SetConnection = Callable[..., str]


def _maskers() -> list[Any]:
    """What masks secrets in logs: Airflow 3 has one on each of its sides, Airflow 2 one for both."""
    loaded = [module for name, module in sys.modules.items() if name.endswith("secrets_masker")]
    found = [vars(module).get("_secrets_masker") for module in loaded]
    return list({id(masker): masker for make in found if callable(make) for masker in (make(),)}.values())


@pytest.fixture
def set_connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[SetConnection]:
    """Define a connection and return its id.

    The secrets of connections are masked until the test ends: for each new one Airflow compiles all that it
    knows, which takes 20 ms with the keys of a thousand tests.
    """
    masked = [(masker, set(masker.patterns), masker.replacer) for masker in _maskers()]

    def define(conn_id: str = "snowflake_default", **fields: Any) -> str:
        fields.setdefault("conn_type", "snowflake")
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))
        return conn_id

    yield define
    for masker, patterns, replacer in masked:
        masker.patterns, masker.replacer = patterns, replacer


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ScriptedService]:
    with ScriptedService(tmp_path) as running:
        yield running


@pytest.fixture
def service_connection(service: ScriptedService, set_connection: SetConnection) -> str:
    return set_connection(
        "scripted",
        conn_type="snowpipe",
        host=service.url,
        password=PAT,
        schema="S",
        extra={"auth": "programmatic_access_token", "database": "DB", "ca_bundle": service.ca_bundle},
    )


@pytest.fixture(scope="session")
def private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="session")
def pem(private_key: rsa.RSAPrivateKey) -> str:
    return _pem(private_key, serialization.NoEncryption())


@pytest.fixture(scope="session")
def encrypted_pem(private_key: rsa.RSAPrivateKey) -> str:
    return _pem(private_key, serialization.BestAvailableEncryption(PASSPHRASE.encode()))


def _pem(key: rsa.RSAPrivateKey, encryption: serialization.KeySerializationEncryption) -> str:
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, form, encryption).decode()


def statuses(**channels: str | dict[str, Any] | None) -> Reply:
    """The answer to a status request: a committed token, or the fields of a status, for each channel."""
    found: dict[str, Any] = {}
    for name, value in channels.items():
        given = value if isinstance(value, dict) else {"last_committed_offset_token": value}
        found[name] = {"channel_status_code": "SUCCESS", **given}
    return Reply(body=json.dumps({"channel_statuses": found}))
