"""The client of one pipe: opens, asks after and drops channels, and carries bodies of rows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Self

from airflow_provider_snowpipe.streaming.auth import (
    HOST_NAME,
    Credentials,
    ScopedToken,
    ScopedTokenSource,
    Signed,
    base_url,
    exchange_form,
)
from airflow_provider_snowpipe.streaming.errors import (
    ApiError,
    AuthenticationError,
    ChannelError,
    ChannelFencedError,
    ChannelInvalidError,
    ConfigurationError,
    PipeFailedOverError,
    PipeNotFoundError,
    UncommittedRowsError,
)
from airflow_provider_snowpipe.streaming.http import DEFAULT_TIMEOUTS, Answer, HttpSession, Transports
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.names import PipeName, check_channel_name, quote_url_segment
from airflow_provider_snowpipe.streaming.progress import (
    CHANNEL_MISSING,
    STATUS_NAMES_PER_REQUEST,
    ChannelStatus,
)

_OPAQUE_LIFE_SECONDS = 600.0
"""Life given to a scoped token that does not show its own; our choice, well under the hour seen so far."""
_FENCED = "STALE_CONTINUATION_TOKEN_SEQUENCER"
_UNCOMMITTED = "ERR_CHANNEL_HAS_UNCOMMITTED_DATA"
_NOT_FOUND_PREFIXES = ("ERR_PIPE_DOES_NOT_EXIST", "ERR_TABLE_DOES_NOT_EXIST")


@dataclass(frozen=True, slots=True)
class OpenedChannel:
    """What opening a channel returned."""

    continuation_token: str
    status: ChannelStatus


class SnowpipeClient:
    """A client for the channels of one pipe. The constructor does no I/O.

    Safe to use from several threads; each channel has one writer. ``http.retries`` counts repetitions.

    :param credentials: key pair, PAT or OAuth token; on an executor the driver's scoped token, never renewed
    :param transports: connections with bundle and time-outs that others share; closing leaves them open
    """

    def __init__(
        self,
        account_url: str,
        credentials: Credentials | ScopedToken,
        pipe: PipeName,
        *,
        ca_bundle: str | None = None,
        timeouts: tuple[float, float] = DEFAULT_TIMEOUTS,
        retry: RetryPolicy | None = None,
        transports: Transports | None = None,
    ) -> None:
        self.pipe = pipe
        self._shown, self._path = f"pipe {pipe}", pipe.url_path
        self._account = base_url(account_url)
        self._port = "".join(self._account.removeprefix("https://").partition(":")[1:])
        self._shared = transports is not None
        self._transports = transports or Transports(ca_bundle, timeouts)
        self._host: str | None = None
        self._scoped: ScopedToken | ScopedTokenSource
        if isinstance(credentials, ScopedToken):
            self._credentials, self._host, self._scoped = None, credentials.host, credentials
        else:
            self._credentials, self._scoped = (
                credentials,
                ScopedTokenSource(partial(self._exchange, credentials)),
            )
            self._signed = HttpSession(self._transports, retry, Signed(credentials), numbered=True)
        self.http = HttpSession(self._transports, retry, self._scoped, numbered=True)
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"SnowpipeClient({self._account!r}, pipe={str(self.pipe)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back, unless others share them; channels stay as they are on the service."""
        if not self._shared:
            self._transports.close()

    def ingest_host(self) -> str:
        """Discover the host that takes rows; asked once."""
        with self._lock:
            if self._host is None:
                answer = self._of_account("find the ingest host", "GET", "/v2/streaming/hostname")
                self._host = _ingest_host(answer)
            return self._host

    def scoped_token(self) -> ScopedToken:
        """A token for the ingest host, valid for some minutes at least; safe to hand to an executor."""
        return self._scoped.get()

    def pipe_info(self) -> dict[str, Any]:
        """Ask about the pipe, which also makes a table's default pipe; PipeNotFoundError if there is none."""
        answer = self._request(
            f"look up {self._shown}",
            "POST",
            f"/v2/streaming{self._path}:pipe-info",
            json_body={"generate_new_token": False},
        )
        return dict(answer.fields)

    def open_channel(
        self, name: str, *, offset_token: str | None = None, fail_on_uncommitted_rows: bool = True
    ) -> OpenedChannel:
        """Open a channel, which shuts out every older writer of it."""
        body: dict[str, Any] = {"fail_on_uncommitted_rows": fail_on_uncommitted_rows}
        if offset_token is not None:
            body["offset_token"] = offset_token
        what = f"open channel {name!r} of {self._shown}"
        path = f"/v2/streaming{self._path}/channels/{quote_url_segment(check_channel_name(name))}"
        answer = self._request(what, "PUT", path, channel=name, verb="open", json_body=body)
        token, state = map(answer.fields.get, ("next_continuation_token", "channel_status"))
        if not isinstance(token, str) or not isinstance(state, Mapping):
            raise self._malformed(what, answer)
        status = ChannelStatus.from_json(state, channel=name)
        if not status.is_valid:
            raise ChannelInvalidError(
                f"channel {name!r} of {self._shown} opened with status {status.code}: see its pipe and table",
                channel=name,
                http_status=answer.status,
                code=status.code,
            )
        return OpenedChannel(token, status)

    def channel_statuses(self, names: Sequence[str]) -> dict[str, ChannelStatus]:
        """Ask after many channels, 100 a request; one that does not exist has a status with that code."""
        statuses: dict[str, ChannelStatus] = {}
        for start in range(0, len(names), STATUS_NAMES_PER_REQUEST):
            some = list(names[start : start + STATUS_NAMES_PER_REQUEST])
            answer = self._request(
                f"ask after {len(some)} channels of {self._shown}",
                "POST",
                f"/v2/streaming{self._path}:bulk-channel-status",
                json_body={"channel_names": some},
            )
            found = answer.fields.get("channel_statuses")
            if not isinstance(found, Mapping):
                raise self._malformed(f"ask after channels of {self._shown}", answer)
            for name in some:
                state = found.get(name)
                # Without a code it means that the channel does not exist.
                state = state if isinstance(state, Mapping) else {}
                statuses[name] = ChannelStatus.from_json(state, channel=name)
        return statuses

    def drop_channel(self, name: str) -> None:
        """Drop a channel and its offset token, with any rows it has not committed."""
        what = f"drop channel {name!r} of {self._shown}"
        path = f"/v2/streaming{self._path}/channels/{quote_url_segment(check_channel_name(name))}"
        self._request(what, "DELETE", path, channel=name, verb="drop")

    def append_rows(
        self,
        name: str,
        body: bytes,
        *,
        continuation_token: str,
        start_token: str,
        end_token: str,
        content_encoding: str | None,
        raw_length: int,
    ) -> str:
        """Send one body of rows. The answer means *received*, not committed.

        All attempts share one request id and the continuation token, so the service takes the rows once.

        :param body: NDJSON, at most 4 MB as it is sent
        :param continuation_token: from the open or the append before
        :raises ChannelFencedError: if another writer opened the channel
        :raises ChannelInvalidError: if the channel must be opened again
        """
        what = f"append to channel {name!r} of {self._shown} (rows {start_token} to {end_token})"
        headers = {
            "Content-Type": "application/x-ndjson",
            "Accept": "application/json",
            "x-snowflake-uncompressed-content-length": str(raw_length),
        }
        if content_encoding:
            headers["Content-Encoding"] = content_encoding
        query = {
            "startOffsetToken": start_token,
            "endOffsetToken": end_token,
            "continuationToken": continuation_token,
        }
        answer = self._request(
            what,
            "POST",
            f"/v2/streaming/data{self._path}/channels/{quote_url_segment(name)}/rows",
            channel=name,
            verb="append to",
            query=query,
            headers=headers,
            body=body,
        )
        following = answer.fields.get("next_continuation_token")
        if not isinstance(following, str):
            raise self._malformed(what, answer)
        return following

    def _exchange(self, credentials: Credentials) -> ScopedToken:
        host = self.ingest_host()
        form = exchange_form(credentials, host)
        return _scoped_token(self._of_account("get a scoped token", "POST", "/oauth/token", form), host)

    def _of_account(self, what: str, method: str, path: str, form: Mapping[str, str] | None = None) -> Answer:
        """Ask the account with the user's own credentials."""
        if self._credentials is None:
            raise AuthenticationError(f"{what}: a client made from a scoped token has no credentials for it")
        return self._signed.request(f"{what} at {self._account}", method, self._account + path, form=form)

    def _request(
        self,
        what: str,
        method: str,
        path: str,
        *,
        channel: str | None = None,
        verb: str = "",
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        json_body: Any = None,
        body: bytes | None = None,
    ) -> Answer:
        """Ask the ingest host about the pipe, or about one of its channels."""
        try:
            url = f"https://{self._host or self.ingest_host()}{self._port}{path}"
            return self.http.request(
                what, method, url, query=query, headers=headers, json_body=json_body, body=body
            )
        except PipeFailedOverError:
            raise
        except ApiError as error:
            if error.code.startswith(_NOT_FOUND_PREFIXES):
                raise PipeNotFoundError(
                    f"{error}. Check that database, schema and table exist with exactly these letters and "
                    "that the role has USAGE on both and INSERT on the table",
                    http_status=error.http_status,
                    code=error.code,
                ) from None
            if channel is None or isinstance(error, ChannelError):
                raise
            raise _channel_error(error, channel, verb) from None

    def _malformed(self, what: str, answer: Answer) -> ApiError:
        return ApiError(
            f"{what}: the answer (HTTP {answer.status}) lacks what the protocol demands; "
            "check that the account URL leads to Snowflake",
            http_status=answer.status,
        )


def _channel_error(error: ApiError, name: str, verb: str) -> ApiError:
    """Distinguish the kinds of refusal that need different handling."""
    details: dict[str, Any] = {"channel": name, "http_status": error.http_status, "code": error.code}
    if error.code == _FENCED:
        return ChannelFencedError(
            f"channel {name!r}: another writer opened it after this one, so this one may not {verb} it any "
            "more. If that was a newer attempt of the same task, nothing is wrong: let it finish",
            **details,
        )
    if error.code == _UNCOMMITTED:
        return UncommittedRowsError(
            f"channel {name!r} holds rows that are not committed; wait for their commit, then open it again",
            **details,
        )
    if error.code == CHANNEL_MISSING or error.code.startswith("ERR_CHANNEL"):
        return ChannelInvalidError(
            f"{error}. Open the channel again and replay from its committed token", **details
        )
    if isinstance(error, ConfigurationError):
        return error
    return ChannelError(str(error), **details)


def _ingest_host(answer: Answer) -> str:
    """Read the host, plain or as ``{"hostname": …}``; with dashes for underscores, as certificates need."""
    value = answer.fields.get("hostname", answer.json)
    text = value if isinstance(value, str) else answer.text
    host = text.strip().replace("_", "-")
    if not HOST_NAME.fullmatch(host):
        raise ApiError(
            f"the service named no usable ingest host ({text[:80]!r})", http_status=answer.status, code=""
        )
    return host


def _scoped_token(answer: Answer, host: str) -> ScopedToken:
    """Read the answer of the token request: the raw token, or JSON that holds it."""
    token: object = answer.json if isinstance(answer.json, str) else answer.text.strip()
    if isinstance(answer.json, Mapping):
        token = answer.fields.get("token") or answer.fields.get("access_token")
    if not isinstance(token, str) or not token or any(c.isspace() for c in token):
        raise AuthenticationError(
            f"the answer to the token request (HTTP {answer.status}) holds no token: check the account URL"
        )
    return ScopedToken(token=token, host=host, expires_at=_expiry(token, answer.fields.get("expires_in")))


def _expiry(token: str, life: object) -> float:
    import jwt  # DAG files that import a client should not wait for it

    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.InvalidTokenError:
        claims = {}
    if isinstance(claims.get("exp"), int | float):
        return float(claims["exp"])
    return time.time() + (float(life) if isinstance(life, int | float) else _OPAQUE_LIFE_SECONDS)
