"""The streaming REST API of a service, by plain HTTP requests, and an open channel."""

import base64
import dataclasses
from typing import Any
from urllib.parse import urlsplit

import requests
import zstandard
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from snowpipe_local.testing import LocalService
from tests.contract.account import Account, KeyPair, Pipe


class Rest(Pipe):
    """The default pipe of a table, unless ``pipe`` names one, at a local service.

    :param key_pair: of a user; without it, that of the service's own user.
    """

    def __init__(
        self,
        service: LocalService,
        table: str = "",
        *,
        database: str = "LOCAL",
        schema: str = "PUBLIC",
        pipe: str | None = None,
        key_pair: KeyPair | None = None,
    ) -> None:
        own = Account.local(service)
        target = {"database": database, "schema": schema, "key_pair": key_pair or own.key_pair}
        super().__init__(dataclasses.replace(own, **target), pipe or f"{table}-STREAMING")  # type: ignore[arg-type]

    def open(self, channel: str, **body: object) -> requests.Response:
        """Open a channel and discard what it has not committed."""
        return super().open(channel, **{"fail_on_uncommitted_rows": False, **body})

    def upload(self, content: bytes) -> str:
        """Upload a file as the SDK's file mode does, and return its path."""
        location = self.info().json()["rowset_stage_location"]
        path = f"{location['location']}rows.bin"
        signed = signed_upload(f"{self.account.url}/{path}", content, location["creds"])
        answer = self.account.call("PUT", f"/{path}", token="", data=content, headers=signed)
        assert answer.status_code == 200, answer.text
        return path


class Writer:
    """An open channel: each body follows the one before.

    :param channel: which is opened.
    """

    def __init__(self, rest: Rest, channel: str = "c") -> None:
        opened = rest.open(channel)
        self._continuation = continuation(opened)
        self._rest = rest
        self.channel = channel
        self.committed: str | None = opened.json()["channel_status"]["last_committed_offset_token"]

    def append(self, body: bytes, token: int, **more: Any) -> requests.Response:
        """Append lines of JSON; the answer, which may be a refusal."""
        answer = self._rest.append(self.channel, self._continuation, body, str(token), **more)
        if answer.status_code == 200:
            self._continuation = continuation(answer)
        return answer

    def commit(self, body: bytes, token: int, **more: Any) -> dict[str, Any]:
        """Append lines of JSON and wait until they are committed; the channel's status then."""
        answer = self.append(body, token, **more)
        assert answer.status_code == 200, answer.text
        return self._rest.wait_for_token(self.channel, str(token))


def continuation(answer: requests.Response) -> str:
    assert answer.status_code == 200, answer.text
    return answer.json()["next_continuation_token"]


def encrypted(body: bytes, key: str, iv: bytes) -> bytes:
    """Return a file's content as the SDK encrypts it with the key of a pipe."""
    cipher = Cipher(algorithms.AES(base64.b64decode(key)[:32]), modes.CTR(iv)).encryptor()
    return cipher.update(zstandard.compress(body, 0)) + cipher.finalize()


def signed_upload(url: str, body: bytes, creds: dict[str, str]) -> dict[str, str]:
    """Return the headers of an upload in file mode, signed with what pipe-info gave out."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest("PUT", url, data=body, headers={"host": urlsplit(url).netloc})
    keys = Credentials(creds["AWS_KEY_ID"], creds["AWS_SECRET_KEY"], creds["AWS_TOKEN"])
    S3SigV4Auth(keys, "s3", "us-east-1").add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


def refused(service: LocalService, statement: str) -> str:
    """Run a statement that fails; the error as the command line prints it."""
    done = service.cli("sql", statement)
    assert done.returncode == 1
    return done.stderr
