"""The options of a store's client, as Airflow's connections and the environment have them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


def options_of(connection: Any) -> SourceSecrets:
    """Read the options of a store's client from an Airflow connection: obstore's names, ``hadoop_…``.

    :param connection: of type ``aws``, ``google_cloud_platform``, ``wasb``, ``adls``, ``webhdfs`` or
        ``hdfs``, with the fields and the extra that Airflow's hooks of these types read
    """
    # Older forms of these connections write ``extra__google_cloud_platform__keyfile_dict``.
    extra = {str(key).split("__")[-1]: one for key, one in connection.extra_dejson.items()}
    make = _OPTIONS.get(str(connection.conn_type))
    if make is None:
        raise ConfigurationError(
            f"source conn_id {connection.conn_id!r} is a connection of type {connection.conn_type!r}: "
            f"give one of {', '.join(sorted(_OPTIONS))}"
        )
    options = {key: str(value) for key, value in make(connection, extra).items() if value}
    return SourceSecrets(options | {"allow_http": "true"} if _is_plain(options) else options)


def _is_plain(options: Mapping[str, str]) -> bool:
    """True where the store is asked without TLS."""
    return any(value.startswith("http://") for value in options.values())


def _refuse_unused(connection: Any, extra: Mapping[str, Any], *names: str) -> None:
    used = next((name for name in names if extra.get(name)), None)
    if used is not None:
        raise ConfigurationError(
            f"source conn_id {connection.conn_id!r} has {used} in its extra, which file readers do not use: "
            "give keys, or leave conn_id out and give the identity to driver and executors"
        )


def _of_aws(connection: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    _refuse_unused(connection, extra, "role_arn", "profile_name", "assume_role_method")
    config = extra.get("service_config") or {}
    endpoint = (config.get("s3") or {}).get("endpoint_url") or extra.get("endpoint_url") or extra.get("host")
    config_kwargs = extra.get("config_kwargs") or {}
    is_anonymous = config_kwargs.get("signature_version") == "unsigned"
    return {
        "aws_access_key_id": connection.login or extra.get("aws_access_key_id"),
        "aws_secret_access_key": connection.password or extra.get("aws_secret_access_key"),
        "aws_session_token": extra.get("aws_session_token"),
        "aws_region": extra.get("region_name"),
        "aws_endpoint": endpoint,
        "aws_skip_signature": "true" if is_anonymous or extra.get("anonymous") else None,
        "aws_request_payer": "true" if extra.get("requester_pays") else None,
        "timeout": f"{read_timeout} seconds" if (read_timeout := config_kwargs.get("read_timeout")) else None,
    }


def _of_google(connection: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    _refuse_unused(connection, extra, "key_secret_name", "credential_config_file", "impersonation_chain")
    key, path = extra.get("keyfile_dict"), extra.get("key_path")
    try:
        text = json.dumps(key) if isinstance(key, Mapping) else key or (path and Path(path).read_text())
    except OSError as error:
        raise ConfigurationError(
            f"source conn_id {connection.conn_id!r}: its key_path {path!r} cannot be read here "
            f"({error.strerror}): correct it, or give keyfile_dict"
        ) from None
    return {
        "google_service_account_key": text,
        "google_base_url": extra.get("endpoint_url"),
        "google_skip_signature": "true" if extra.get("is_anonymous") else None,
    }


def _of_azure(connection: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    _refuse_unused(connection, extra, "workload_identity_tenant_id")
    pairs = (one.partition("=") for one in str(extra.get("connection_string") or "").split(";"))
    parts = {key.strip().lower(): value for key, _, value in pairs}
    host = parts.get("blobendpoint") or str(connection.host or "")
    is_principal = bool(extra.get("tenant_id"))
    named = re.match(r"(?:https?://)?([a-z0-9]{3,24})(?:\.|$)", host)
    account = parts.get("accountname") or extra.get("account_name")
    token = parts.get("sharedaccesssignature") or extra.get("sas_token")
    return {
        "azure_storage_account_name": account
        or (None if is_principal else connection.login)
        or (named and named[1]),
        "azure_storage_account_key": parts.get("accountkey")
        or extra.get("account_key")
        or (None if is_principal else connection.password),
        "azure_storage_sas_token": token and str(token).rpartition("?")[2],
        "azure_storage_client_id": connection.login
        if is_principal
        else extra.get("managed_identity_client_id"),
        "azure_storage_client_secret": connection.password if is_principal else None,
        "azure_storage_tenant_id": extra.get("tenant_id"),
        "azure_endpoint": host if "://" in host else None,
    }


def _of_hadoop(connection: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    _refuse_unused(connection, extra, "cert", "cookies", "headers", "proxy_user")
    hosts = [one.strip() for one in str(connection.host or "").split(",") if one.strip()]
    port = f":{connection.port}" if connection.port else ""
    verify = extra.get("verify")
    return {
        "hadoop_hosts": ",".join(one if ":" in one else f"{one}{port}" for one in hosts),
        "hadoop_user": connection.login,
        "hadoop_password": connection.password,
        "hadoop_schema": connection.schema,
        "hadoop_use_ssl": "true" if str(extra.get("use_ssl")).lower() == "true" else None,
        "hadoop_verify": verify if verify is None else str(verify),
    }


def identity_of(values: dict[str, Any]) -> dict[str, Any]:
    """Take a connection's keys out of a client's options, so that none of the environment's joins them.

    The client reads both: it would send the environment's session token along with the connection's key.
    """
    for store in ("aws", "google", "azure"):
        if any(name.startswith(store) for name in values):
            values.setdefault(f"{store}_skip_signature", "false")
    for keys in _KEYS:
        if next(iter(keys)) in values:
            found = {key: values.pop(name, None) for name, key in keys.items()}
            return {"credential_provider": partial(dict, found, expires_at=None)}
    return {}


_KEYS: tuple[Mapping[str, str], ...] = (
    {
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "token",
    },
    {"azure_storage_account_key": "access_key"},
    {"azure_storage_sas_token": "sas_token"},
)
"""Options that are a key as a whole, by the names that the client gives to its parts."""


_OPTIONS: Mapping[str, Callable[[Any, Mapping[str, Any]], dict[str, Any]]] = {
    "aws": _of_aws,
    "google_cloud_platform": _of_google,
    "wasb": _of_azure,
    "adls": _of_azure,
    "webhdfs": _of_hadoop,
    "hdfs": _of_hadoop,
}
