"""Files of a bucket behind a local S3 endpoint."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_snowpipe.local.errors import SqlError
from airflow_provider_snowpipe.local.stages.files import StagedFile, suffix_of

DEFAULT_REGION = "us-east-1"
_BLOCK = 1 << 20
_DELETE_BATCH = 1000
_CONNECT_SECONDS = 5
_READ_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket, and how to reach it.

    :param endpoint: URL of the S3 service.
    :param name: bucket.
    :param region: signing region.
    :param key_id: access key id; None makes unsigned requests.
    :param secret: secret key.
    :param token: session token, or None.
    """

    endpoint: str
    name: str
    region: str = DEFAULT_REGION
    key_id: str | None = None
    secret: str | None = None
    token: str | None = None

    def __repr__(self) -> str:
        """Show no secret."""
        return f"Bucket({self.endpoint}/{self.name})"

    @classmethod
    def of(cls, endpoint: str, name: str, region: str | None, credentials: Mapping[str, str]) -> Bucket:
        """Build a bucket from the credentials of a stage."""
        return cls(
            endpoint,
            name,
            region or DEFAULT_REGION,
            credentials.get("AWS_KEY_ID"),
            credentials.get("AWS_SECRET_KEY"),
            credentials.get("AWS_TOKEN"),
        )


def loopback_endpoint(text: str) -> str:
    """Return the URL of an S3 endpoint on this machine.

    :param text: ``host:port``, with or without a scheme; without one it is ``http``.
    :raises SqlError: for a host that is not loopback: the local service reaches no other machine.
    """
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise _refused(text) from error
    plain = parts.path in {"", "/"} and not parts.query and not parts.username
    if parts.scheme not in {"http", "https"} or not plain or not _is_loopback(host):
        raise _refused(text)
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port else "")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _refused(text: str) -> SqlError:
    return SqlError(
        "001008",
        "22023",
        f"SQL compilation error:\ninvalid value [{text}] for parameter 'ENDPOINT'; the local service "
        f"reaches S3 on this machine only: use 127.0.0.1:port or localhost:port.",
    )


@functools.lru_cache(maxsize=32)
def _client(bucket: Bucket) -> Any:
    # boto3 takes a quarter of a second to import; a service without s3 stages does not pay for it.
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    config = Config(
        signature_version="s3v4" if bucket.key_id else UNSIGNED,
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        retries={"total_max_attempts": 3, "mode": "standard"},
        s3={"addressing_style": "path"},
        # The endpoint is on this machine; a proxy of the environment does not lead there.
        proxies={},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    session = boto3.session.Session(
        aws_access_key_id=bucket.key_id,
        aws_secret_access_key=bucket.secret,
        aws_session_token=bucket.token,
        region_name=bucket.region,
    )
    return session.client("s3", endpoint_url=bucket.endpoint, config=config)


class S3Area:
    """Files of a bucket below a key prefix.

    :param bucket: the bucket.
    :param base: key prefix of the stage, empty or with a closing ``/``.
    :param downloads: folder for files while they are read.
    """

    def __init__(self, bucket: Bucket, base: str, downloads: Path) -> None:
        self._bucket = bucket
        self._base = base
        self._downloads = downloads

    def list(self, prefix: str) -> list[StagedFile]:
        """Return the objects whose key starts with a text, by key; "folder" objects do not show."""
        found: list[StagedFile] = []
        with _as_sql_error(self._bucket):
            pages = _client(self._bucket).get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket.name, Prefix=self._base + prefix):
                found += [
                    StagedFile(
                        entry["Key"][len(self._base) :],
                        entry["Size"],
                        entry["ETag"].strip('"'),
                        int(entry["LastModified"].timestamp() * 1000),
                    )
                    for entry in page.get("Contents", ())
                    if not entry["Key"].endswith("/")
                ]
        return sorted(found, key=lambda staged: staged.path)

    @contextlib.contextmanager
    def local_copy(self, file: StagedFile) -> Iterator[Path]:
        """Download an object into a private file that goes away afterwards.

        What was listed is what is read.

        :raises SqlError: when the object is gone, or is not the one that was listed.
        """
        descriptor, name = tempfile.mkstemp(suffix=suffix_of(file.path), dir=self._downloads)
        try:
            with os.fdopen(descriptor, "wb") as handle, _as_sql_error(self._bucket):
                answer = _client(self._bucket).get_object(
                    Bucket=self._bucket.name, Key=self._base + file.path, IfMatch=f'"{file.etag}"'
                )
                for block in answer["Body"].iter_chunks(_BLOCK):
                    handle.write(block)
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    def remove(self, files: Iterable[StagedFile]) -> None:
        """Delete objects."""
        keys = [{"Key": self._base + file.path} for file in files]
        with _as_sql_error(self._bucket):
            for start in range(0, len(keys), _DELETE_BATCH):
                batch = {"Objects": keys[start : start + _DELETE_BATCH], "Quiet": True}
                answer = _client(self._bucket).delete_objects(Bucket=self._bucket.name, Delete=batch)
                for failed in answer.get("Errors", ())[:1]:
                    raise _remote_error(self._bucket, f"{failed.get('Key')}: {failed.get('Message')}")


@contextlib.contextmanager
def _as_sql_error(bucket: Bucket) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise _remote_error(bucket, str(error)) from error


def _remote_error(bucket: Bucket, detail: str) -> SqlError:
    return SqlError(
        "100016",
        "22000",
        f"Failure using stage area. Cause: [s3://{bucket.name} at {bucket.endpoint}: {detail}]",
    )
