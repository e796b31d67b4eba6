"""A client of the streaming REST API with plain HTTP requests, as a strict client would send them."""

import uuid
from typing import Any
from urllib.parse import urlsplit

import requests
from snowpipe_local.testing import LocalService

from tests.waiting import wait_until

KEY_PAIR = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer"}
ACCESS_TOKEN = {
    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
    "subject_token_type": "programmatic_access_token",
}


class Rest:
    """A client of the streaming REST API without any retry.

    :param table: whose default pipe it uses, unless ``pipe`` names one.
    :param bearer: JWT or programmatic access token of a user; without it, a JWT of the service's own user.
    :param grant: what ``bearer`` is, as fields of the token request.
    """

    def __init__(
        self,
        service: LocalService,
        table: str = "",
        *,
        database: str = "LOCAL",
        schema: str = "PUBLIC",
        pipe: str | None = None,
        bearer: str | None = None,
        grant: dict[str, str] = KEY_PAIR,
    ) -> None:
        self._base = f"{service.url}/v2/streaming"
        self._pipe = f"databases/{database}/schemas/{schema}/pipes/{pipe or f'{table}-STREAMING'}"
        self.http = requests.Session()
        self.http.trust_env = False
        self.http.verify = str(service.ca_file)
        self.jwt = bearer or service.key_pair_jwt()
        form = {**grant, "scope": "127.0.0.1"}
        answer = self.call("POST", f"{service.url}/oauth/token", self.jwt, data=form)
        assert answer.status_code == 200, answer.text
        self.token = answer.text

    def call(self, method: str, url: str, token: str | None, **more: Any) -> requests.Response:
        headers = {**more.pop("headers", {})}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return self.http.request(method, url, headers=headers, timeout=240, **more)

    def open(self, channel: str, **body: Any) -> requests.Response:
        return self.call("PUT", f"{self._base}/{self._pipe}/channels/{channel}", self.token, json=body)

    def drop(self, channel: str) -> requests.Response:
        return self.call("DELETE", f"{self._base}/{self._pipe}/channels/{channel}", self.token)

    def append(
        self, channel: str, continuation: str, body: bytes, end: str = "", **more: Any
    ) -> requests.Response:
        query = {"continuationToken": continuation, "endOffsetToken": end, "startOffsetToken": ""}
        query |= {"requestId": str(uuid.uuid4()), "retryCount": "0", **more.pop("params", {})}
        url = f"{self._base}/data/{self._pipe}/channels/{channel}/rows"
        return self.call("POST", url, self.token, params=query, data=body, **more)

    def info(self) -> requests.Response:
        """Ask for the pipe; the first call makes a table's default pipe."""
        return self.call("POST", f"{self._base}/{self._pipe}:pipe-info", self.token, json={})

    def bulk_status(self, *names: str) -> requests.Response:
        url = f"{self._base}/{self._pipe}:bulk-channel-status"
        return self.call("POST", url, self.token, json={"channel_names": names})

    def statuses(self, *names: str) -> dict[str, Any]:
        answer = self.bulk_status(*names)
        assert answer.status_code == 200, answer.text
        return answer.json()["channel_statuses"]

    def committed(self, channel: str) -> str | None:
        token: str | None = self.statuses(channel)[channel]["last_committed_offset_token"]
        return token

    def wait_for_token(self, channel: str, token: str, seconds: float = 120) -> dict[str, Any]:
        wait_until(lambda: self.committed(channel) == token, seconds=seconds, what=f"token {token}")
        return dict(self.statuses(channel)[channel])


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
    token: str = answer.json()["next_continuation_token"]
    return token


def signed_upload(url: str, body: bytes, creds: dict[str, str]) -> dict[str, str]:
    """Return the headers of an upload in file mode, signed with what pipe-info gave out."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest("PUT", url, data=body, headers={"host": urlsplit(url).netloc})
    keys = Credentials(creds["AWS_KEY_ID"], creds["AWS_SECRET_KEY"], creds["AWS_TOKEN"])
    S3SigV4Auth(keys, "s3", "us-east-1").add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}
