"""The scoped token that the driver gives to tasks, kept over micro-batches while it is young.

Spark uses its helper processes on the driver again for the next micro-batch (observed with PySpark 4.2), so
that a stream need not ask for the ingest host and a token each time.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass

from airflow_provider_snowpipe.spark.credentials import (
    CREDENTIALS_FILE_VARIABLE,
    CREDENTIALS_VARIABLE,
    standing_credentials,
)
from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.streaming.auth import ScopedToken
from airflow_provider_snowpipe.streaming.client import SnowpipeClient

_LIFE_LEFT = 0.8
"""A token with less of its life than this is replaced: a batch may take most of it."""


@dataclass(frozen=True, slots=True)
class _Kept:
    token: ScopedToken
    fresh_until: float


_kept: dict[tuple[object, ...], _Kept] = {}


def driver_token(options: WriteOptions) -> ScopedToken:
    """A scoped token with most of its life before it.

    Credentials that were replaced, in the file or the environment, are read anew.

    :param options: what the write's options say
    :raises ConfigurationError: if there are no usable credentials
    :raises AuthenticationError: if the service refuses them
    """
    key = (options.account_url, options.ca_bundle, *credentials_stamp(options.credentials_file))
    kept = _kept.get(key)
    if kept is not None and time.time() < kept.fresh_until:
        return kept.token
    credentials = standing_credentials(options.credentials_file)
    with SnowpipeClient(
        options.account_url, credentials, options.pipe, ca_bundle=options.ca_bundle
    ) as client:
        token = client.scoped_token()
    _kept.clear()
    _kept[key] = _Kept(token, token.expires_at - _LIFE_LEFT * token.remaining_seconds())
    return token


def credentials_stamp(path: str | None) -> tuple[object, ...]:
    """What changes when the credentials are replaced or become readable by others.

    :param path: the option ``credentialsFile``, None for the environment's
    """
    found = path or os.environ.get(CREDENTIALS_FILE_VARIABLE)
    if not found:
        text = os.environ.get(CREDENTIALS_VARIABLE, "")
        return (hashlib.sha256(text.encode()).digest(),)
    try:
        facts = os.lstat(found)
    except OSError:
        return (found,)
    return (found, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_mode)
