"""Azure's blob storage on this machine: Azurite, which npm fetches once into the cache."""

import base64
import datetime as dt
import hmac
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
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
    """A running service."""

    endpoint: str

    def options(self, key: str = KEY) -> SourceSecrets:
        return self._options(login=ACCOUNT, password=key)

    def signed_options(self) -> SourceSecrets:
        """The same by a shared access signature."""
        fields = {"sp": "rwdlc", "ss": "b", "srt": "sco", "se": "2999-01-01T00:00:00Z", "sv": "2020-12-06"}
        values = [ACCOUNT, fields["sp"], fields["ss"], fields["srt"], "", fields["se"], "", "", fields["sv"]]
        token = urlencode({**fields, "sig": _signed("\n".join([*values, "", ""]))})
        return self._options(extra_dejson={"account_name": ACCOUNT, "sas_token": f"?{token}"})

    def _options(self, **fields: Any) -> SourceSecrets:
        common = {"conn_id": "lake", "conn_type": "wasb", "host": self.endpoint}
        absent: dict[str, Any] = {"login": None, "password": None, "extra_dejson": {}}
        return options_of(SimpleNamespace(**{**common, **absent, **fields}))

    def make(self, container: str) -> None:
        version, date = "2021-08-06", f"{dt.datetime.now(dt.UTC):%a, %d %b %Y %H:%M:%S} GMT"
        path = f"/{ACCOUNT}/{ACCOUNT}/{container}"
        text = f"PUT{12 * chr(10)}x-ms-date:{date}\nx-ms-version:{version}\n{path}\nrestype:container"
        proof = f"SharedKey {ACCOUNT}:{_signed(text)}"
        headers = {"x-ms-date": date, "x-ms-version": version, "Authorization": proof}
        url = f"{self.endpoint}/{container}?restype=container"
        requests.put(url, headers=headers, timeout=60).raise_for_status()


def _signed(text: str) -> str:
    return base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), "sha256")).decode()


@contextmanager
def azure_service(folder: Path) -> Iterator[AzureService]:
    command = [_program(), "--blobHost", "127.0.0.1", "--blobPort", "0", "--location", str(folder)]
    command += ["--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            found = (re.search(r"listens on (http://\S+)", line) for line in process.stdout)
            yield AzureService(f"{next(one[1] for one in found if one)}/{ACCOUNT}")
        finally:
            process.kill()


def _program() -> str:
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
