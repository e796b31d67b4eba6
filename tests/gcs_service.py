"""Google Cloud Storage on this machine: an emulator in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import requests

CONNECTOR = "com.google.cloud.bigdataoss:gcs-connector:3.0.4:jar:shaded"
"""Google's own ``gs://`` for Hadoop, which can be pointed at another service."""
# Hadoop 3.5 brings defaults of its own connector for the same keys: another class, and sizes such as "64m",
# which Google's reads as plain numbers.
CONNECTOR_NEEDS = {
    "impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    "block.size": "67108864",
    "inputstream.inplace.seek.limit": "8388608",
    "inputstream.min.range.request.size": "2097152",
    "outputstream.buffer.size": "8388608",
    "rewrite.max.chunk.size": "536870912",
}


_PROGRAM = """
import sys
from functools import partial
from http.server import HTTPServer

from gcp_storage_emulator.handlers.buckets import create_bucket
from gcp_storage_emulator.server import RequestHandler
from gcp_storage_emulator.storage import Storage

storage = Storage(use_memory_fs=True)
create_bucket(sys.argv[1], storage)
server = HTTPServer(("127.0.0.1", 0), partial(RequestHandler, storage))
print(server.server_port, flush=True)
server.serve_forever()
"""


@dataclass(frozen=True, slots=True)
class GcsService:
    """A running service."""

    port: int

    def hadoop_settings(self) -> dict[str, str]:
        service = {
            "storage.root.url": f"http://127.0.0.1:{self.port}/",
            "auth.type": "UNAUTHENTICATED",
            "project.id": "local-test",
            # The emulator answers no batch in which an object is missing.
            "create.items.conflict.check.enable": "false",
        }
        return {f"spark.hadoop.fs.gs.{one}": value for one, value in (CONNECTOR_NEEDS | service).items()}

    def keys(self, bucket: str) -> list[str]:
        url = f"http://127.0.0.1:{self.port}/storage/v1/b/{bucket}/o"
        return [one["name"] for one in requests.get(url, timeout=60).json().get("items", ())]


@contextmanager
def gcs_service(bucket: str) -> Iterator[GcsService]:
    """Run a service until the block ends; skips the test where the emulator is not installed."""
    pytest.importorskip("gcp_storage_emulator", reason="gcp-storage-emulator is not installed")
    command = [sys.executable, "-c", _PROGRAM, bucket]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield GcsService(int(process.stdout.readline()))
        finally:
            process.kill()


def see_gcs(gcs: GcsService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have gcsfs, by which the provider of Google reads ``gs://`` on a worker, use the service.

    Before Airflow 3.2 a provider has to bring each storage.
    """
    gcsfs = pytest.importorskip("gcsfs")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{gcs.port}")
    # Another test's file system would be taken for this one's.
    gcsfs.GCSFileSystem.clear_instance_cache()
