"""Azure's blob storage on this machine: Azurite, which npm fetches once into the cache."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest
import requests

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.files.storage_options import options_of
from tests.java_options import cache_folder

_PACKAGE = "azurite@3.37.0"
_SECONDS = 300
ACCOUNT = "devstoreaccount1"
# The one that Azurite documents, and that all its users have.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True, slots=True)
class AzureService:
    """A running service.

    :param endpoint: its URL, with the account
    """

    endpoint: str

    def options(self, key: str = KEY) -> SourceSecrets:
        """The service as a source of files asks it."""
        connection = SimpleNamespace(
            conn_id="lake", conn_type="wasb", login=ACCOUNT, password=key, host=self.endpoint, extra_dejson={}
        )
        return options_of(connection)

    def signed_options(self) -> SourceSecrets:
        """The same by a shared access signature."""
        fields = {"sp": "rwdlc", "ss": "b", "srt": "sco", "se": "2999-01-01T00:00:00Z", "sv": "2020-12-06"}
        values = [ACCOUNT, fields["sp"], fields["ss"], fields["srt"], "", fields["se"], "", "", fields["sv"]]
        text = "\n".join([*values, "", ""])
        signed = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        token = urlencode({**fields, "sig": base64.b64encode(signed).decode()})
        extra = {"account_name": ACCOUNT, "sas_token": f"?{token}"}
        connection = SimpleNamespace(
            conn_id="lake",
            conn_type="wasb",
            login=None,
            password=None,
            host=self.endpoint,
            extra_dejson=extra,
        )
        return options_of(connection)

    def make(self, container: str) -> None:
        """Create a container."""
        version, date = "2021-08-06", f"{dt.datetime.now(dt.UTC):%a, %d %b %Y %H:%M:%S} GMT"
        path = f"/{ACCOUNT}/{ACCOUNT}/{container}"
        text = f"PUT{12 * chr(10)}x-ms-date:{date}\nx-ms-version:{version}\n{path}\nrestype:container"
        signed = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        headers = {
            "x-ms-date": date,
            "x-ms-version": version,
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(signed).decode()}",
        }
        url = f"{self.endpoint}/{container}?restype=container"
        requests.put(url, headers=headers, timeout=60).raise_for_status()


@contextmanager
def azure_service(folder: Path) -> Iterator[AzureService]:
    """Run a service until the block ends; skips the test where Azurite cannot be had.

    :param folder: for its files
    """
    command = [_program(), "--blobHost", "127.0.0.1", "--blobPort", "0", "--location", str(folder)]
    command += ["--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = (re.search(r"listens on (http://\S+)", line) for line in process.stdout)
            yield AzureService(f"{next(one[1] for one in found if one)}/{ACCOUNT}")
        finally:
            process.kill()


def _program() -> str:
    """Fetch Azurite; skip the test where that cannot be done."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip(f"there is no Node with npm to fetch {_PACKAGE}")
    folder = cache_folder() / _PACKAGE.replace("@", "-")
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text("{}")
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), _PACKAGE]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"{_PACKAGE}: npm has not fetched it in {_SECONDS} s")
        if done.returncode != 0:
            pytest.skip(f"{_PACKAGE} cannot be fetched by npm: {done.stderr[-300:]}")
        (folder / "complete").touch()
    return str(folder / "node_modules/.bin/azurite-blob")
