"""An S3 service on this machine: moto's server in a thread of the test process."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import requests

KEY_ID, SECRET = "AKIALOCALTEST", "local-test-secret"


@dataclass(frozen=True, slots=True)
class S3Service:
    """A running service.

    :param port: port on 127.0.0.1.
    :param client: boto3 client of it.
    """

    port: int
    client: Any

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def put(self, bucket: str, files: dict[str, bytes]) -> None:
        """Store objects, creating the bucket."""
        self.client.create_bucket(Bucket=bucket)
        for key, content in files.items():
            self.client.put_object(Bucket=bucket, Key=key, Body=content)

    def keys(self, bucket: str) -> list[str]:
        """Return the keys of a bucket."""
        return [entry["Key"] for entry in self.client.list_objects_v2(Bucket=bucket).get("Contents", ())]


@contextmanager
def s3_service() -> Iterator[S3Service]:
    """Run an S3 service until the block ends."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
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
