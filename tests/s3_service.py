"""An S3 service on this machine: moto's server in a thread of the test process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.files.storage_options import options_of

KEY_ID, SECRET = "AKIALOCALTEST", "local-test-secret"


@dataclass(frozen=True, slots=True)
class S3Service:
    """A running service."""

    port: int
    client: Any

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def options(self, port: int | None = None, **extra: Any) -> SourceSecrets:
        extra = {**self.extra, "endpoint_url": f"http://127.0.0.1:{port or self.port}", **extra}
        connection = SimpleNamespace(
            conn_id="lake", conn_type="aws", login=KEY_ID, password=SECRET, extra_dejson=extra
        )
        return options_of(connection)

    @property
    def extra(self) -> dict[str, str]:
        return {"endpoint_url": f"http://{self.endpoint}", "region_name": "us-east-1"}

    def put(self, bucket: str, files: dict[str, bytes]) -> None:
        self.client.create_bucket(Bucket=bucket)
        for key, content in files.items():
            self.client.put_object(Bucket=bucket, Key=key, Body=content)

    def keys(self, bucket: str) -> list[str]:
        return [entry["Key"] for entry in self.client.list_objects_v2(Bucket=bucket).get("Contents", ())]


def _one_creation(app: Any) -> Any:
    """Conditional writes one after the other, as S3 decides them: moto looks, and writes later."""
    lock = Lock()

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        with lock if "HTTP_IF_NONE_MATCH" in environ else nullcontext():
            return app(environ, start_response)

    return answer


@contextmanager
def s3_service(between: Callable[[Any], Any] = lambda app: app) -> Iterator[S3Service]:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    server._server.app = between(_one_creation(server._server.app))  # type: ignore[union-attr]
    try:
        host, port = server.get_host_and_port()
        # moto keeps the buckets of one process over servers.
        requests.post(f"http://{host}:{port}/moto-api/reset", timeout=60).raise_for_status()
        client = boto3.client(
            "s3",
            endpoint_url=f"http://{host}:{port}",
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )
        yield S3Service(port, client)
    finally:
        server.stop()


def see_s3(s3: S3Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process a file system for ``s3://``, which the provider of Amazon would bring to a worker.

    Before Airflow 3.2 a provider has to bring each storage.
    """
    from fsspec.implementations.arrow import ArrowFSWrapper
    from fsspec.registry import _registry
    from pyarrow import fs

    class Lake(ArrowFSWrapper):
        protocol = "s3"

        def __init__(self, **options: Any) -> None:
            store = fs.S3FileSystem(
                access_key=KEY_ID,
                secret_key=SECRET,
                endpoint_override=s3.endpoint,
                scheme="http",
                region="us-east-1",
            )
            super().__init__(store, **options)

    monkeypatch.setitem(_registry, "s3", Lake)
