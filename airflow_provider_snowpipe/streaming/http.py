"""HTTP as the protocol needs it: answers, pooled connections, and which answers are worth repeating."""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any
from urllib.parse import urlencode, urlsplit

import certifi
import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies, select_proxy

from airflow_provider_snowpipe import __version__
from airflow_provider_snowpipe.streaming.auth import Authorization
from airflow_provider_snowpipe.streaming.errors import (
    IF_NO_ANSWER,
    ApiError,
    AuthenticationError,
    ConfigurationError,
    PipeFailedOverError,
    RetriesExhaustedError,
)
from airflow_provider_snowpipe.streaming.limits import DEFAULT_RETRY, RetryPolicy
from airflow_provider_snowpipe.streaming.names import quote_url_segment

log = logging.getLogger(__name__)

_LONGEST_QUOTE = 300
_CHUNK_BYTES = 65_536


# pragma: no mutate start (sockets and certificates are tested over the wire)


class UnreachableError(Exception):
    """One attempt got no answer (connection refused or lost, time-out). The outcome is unknown."""


@dataclass(frozen=True)
class Answer:
    """What came back for one attempt."""

    status: int
    body: bytes
    retry_after: float | None = None

    @cached_property
    def json(self) -> Any:
        """The body as JSON, None where it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def fields(self) -> Mapping[str, Any]:
        """The body's JSON object, empty where it is none."""
        return self.json if isinstance(self.json, Mapping) else {}

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace")

    @property
    def code(self) -> str:
        """The service's stable error code; empty where the body has none ("code" or "error_code")."""
        code = self.fields.get("code", self.fields.get("error_code"))
        return code if isinstance(code, str) else ""

    def describe(self) -> str:
        """Describe what the service answered, for an error's text."""
        message = self.fields.get("message")
        shown = message[:_LONGEST_QUOTE] if isinstance(message, str) else ""
        return ", ".join(filter(None, [f"HTTP {self.status}", self.code, shown]))


# -- Connections -----------------------------------------------------------------------------------------

USER_AGENT = f"airflow-provider-snowpipe/{__version__}"
_HEADERS = {
    "User-Agent": USER_AGENT,
    "Accept": "application/json",
    "Accept-Charset": "UTF-8",
    "Accept-Encoding": "gzip",
}
_CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")


_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)


@contextmanager
def time_budget(seconds: float) -> Iterator[None]:
    """Bound the time of all requests of a block together, with those for tokens and their repetitions."""
    token = _deadline.set(min(_deadline.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _deadline.reset(token)


def seconds_left(most: float = math.inf) -> float:
    """The seconds of the time budget that are left, not above ``most``, and 0 where it is used up."""
    return max(0.0, min(most, _deadline.get() - time.monotonic()))


DEFAULT_TIMEOUTS = (5.0, 30.0)
"""Seconds of one attempt: for a connection, and for the next bytes of the answer."""


def certificate_authorities(ca_bundle: str | None) -> str:
    """Choose the file of trusted roots: the given one, the environment's, or the public roots.

    Passed to every call, because ``requests`` prefers ``REQUESTS_CA_BUNDLE`` to a session's setting.
    """
    origin, path = "ca_bundle", ca_bundle
    if not path:
        origin, path = next(((n, os.environ[n]) for n in _CA_VARIABLES if os.environ.get(n)), ("", None))
    if not path:
        return certifi.where()
    if not os.path.exists(path):
        raise ConfigurationError(f"{origin} names {path!r}, which does not exist: give a PEM file of roots")
    return path


class ProvenSession(requests.Session):
    """A session that sends the proof of its caller, and never a password of ``~/.netrc`` in its place.

    Every request by ``requests`` in this package is made through one. Proxies are the environment's.
    """

    def __init__(self) -> None:
        super().__init__()
        # With an object that authorizes, requests does not look for another one.
        self.auth = lambda request: request

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Leave the proof behind where a redirect leads to another host."""
        sent, target = (urlsplit(one.url or "")[:2] for one in (response.request, prepared_request))
        if sent != target:
            prepared_request.headers.pop("Authorization", None)


class Transports:
    """The connections of a client, or of all clients in a process. The constructor does no I/O.

    They are the pools beneath ``requests``, with its proxies: cheaper, without redirects and ``~/.netrc``.

    :param timeouts: of every attempt, in seconds: for a connection, and for the next bytes of the answer
    """

    def __init__(self, ca_bundle: str | None, timeouts: tuple[float, float] = DEFAULT_TIMEOUTS) -> None:
        self._verify = certificate_authorities(ca_bundle)
        self._timeouts = timeouts
        self._adapter = HTTPAdapter(pool_maxsize=32)
        self._pools: dict[str, urllib3.HTTPConnectionPool] = {}

    def send(
        self,
        method: str,
        url: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        json_body: Any = None,
        form: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """Make one attempt; UnreachableError if there is no answer."""
        if not seconds_left():
            raise UnreachableError(f"{urlsplit(url).netloc} was not asked: the time for it is used up")
        sent = {**_HEADERS, **headers}
        if json_body is not None:
            body, sent["Content-Type"] = json.dumps(json_body).encode(), "application/json"
        elif form is not None:
            body, sent["Content-Type"] = urlencode(form).encode(), "application/x-www-form-urlencoded"
        parts, (connect, read) = urlsplit(url), self._timeouts
        words = "&".join(f"{key}={quote_url_segment(value)}" for key, value in query.items())
        try:
            response = self._pool_for(url, parts.netloc).urlopen(
                method,
                f"{parts.path or '/'}?{words}" if words else parts.path or "/",
                headers=sent,
                body=body,
                timeout=urllib3.Timeout(connect=seconds_left(connect), read=seconds_left(read)),
                retries=False,
                redirect=False,
                assert_same_host=False,
                preload_content=False,
            )
            content = _content(url, response)
        except urllib3.exceptions.SSLError as error:
            raise_if_untrusted(url, self._verify, error)
            raise _unreachable(url, error) from None
        except urllib3.exceptions.HTTPError as error:
            raise _unreachable(url, error) from None
        return Answer(response.status, content, retry_after(response.headers))

    def _pool_for(self, url: str, host_and_port: str) -> urllib3.HTTPConnectionPool:
        """The connections to a host and port; what ``requests`` would look up for every request."""
        pool = self._pools.get(host_and_port)
        if pool is None:
            proxy = select_proxy(url, get_environ_proxies(url))
            manager = self._adapter.proxy_manager_for(proxy) if proxy else self._adapter.poolmanager
            trusted = {"cert_reqs": "CERT_REQUIRED", "ca_certs": self._verify}
            pool = self._pools[host_and_port] = manager.connection_from_url(url, pool_kwargs=trusted)
        return pool

    def close(self) -> None:
        """Give the connections back."""
        self._adapter.close()
        self._pools = {}


def _content(url: str, response: urllib3.BaseHTTPResponse) -> bytes:
    """Read an answer to its end within the time budget: a time-out is for each read of the socket only."""
    if _deadline.get() == math.inf:
        return response.data
    parts = []
    while part := response.read1(_CHUNK_BYTES, decode_content=True):
        parts.append(part)
        if not seconds_left():
            response.close()
            raise UnreachableError(f"{urlsplit(url).netloc} does not end its answer in time")
    response.release_conn()
    return b"".join(parts)


def raise_if_untrusted(url: str, verify: str, error: Exception) -> None:
    """Turn a certificate that is not trusted into an error at once: no repetition can help."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error) or "certificate verify failed" in str(error):
        host = urllib3.util.parse_url(url).netloc
        raise ConfigurationError(
            f"the certificate of {host} is not signed by any root in {verify}: set ca_bundle (or "
            "REQUESTS_CA_BUNDLE) to a file that holds the right one"
        ) from None


def _unreachable(url: str, error: Exception) -> UnreachableError:
    """Build the error of an attempt without an answer; the library's own text may hold a token."""
    return UnreachableError(f"{urlsplit(url).netloc} does not answer ({type(error).__name__})")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that ``Retry-After`` asks to wait (a number or a date), None where there is no such header."""
    value = (headers.get("Retry-After") or "").strip()
    if value.isdecimal():
        return float(value)
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=dt.UTC)
    return max(0.0, (until - dt.datetime.now(dt.UTC)).total_seconds())


# pragma: no mutate end


# -- Which answers are worth repeating, for how long, and what the others mean ---------------------------
#
# The table is SDK 1.9.1's, as observed, with bounded budgets instead of its ten hours and with ``Retry-
# After`` honoured, which the SDK ignores.

_UNAUTHORIZED = frozenset({401, 403})
_TRANSIENT = frozenset({408, 429})
_MOST_RENEWALS = 2
"""A fresh scoped token that is refused twice is a matter of rights, which no repetition helps."""


def is_transient(answer: Answer) -> bool:
    """True when the same request may succeed later.

    A 404 without a JSON code comes from something before the service (observed with SDK 1.9.1).
    """
    if answer.status in _TRANSIENT or answer.status >= 500:
        return True
    if answer.status == 409 and answer.code == "ERR_OPEN_CHANNEL_IN_PROGRESS":
        return True
    return answer.status == 404 and not answer.code


@dataclass(slots=True, eq=False, repr=False)
class HttpSession:
    """Requests over some connections: authorized, repeated while that is safe, refused in clear words.

    ``retries`` counts the attempts that were repetitions. Safe to use from several threads.

    :param numbered: True gives requests an id and attempts a number, as Snowpipe Streaming has it
    :param refused: the error that an answer stands for in this service; None leaves it to the table
    """

    transports: Transports
    retry: RetryPolicy | None
    authorization: Authorization
    _: KW_ONLY
    numbered: bool = False
    refused: Callable[[str, Answer], Exception | None] | None = None
    retries: int = field(default=0, init=False)

    def request(
        self,
        what: str,
        method: str,
        url: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        json_body: Any = None,
        form: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """Make one logical request, repeating it while that is safe and worth it.

        Id and continuation token stay over all repetitions: a time-out means that the outcome is unknown.

        :raises AuthenticationError: if the credentials stay refused
        :raises RetriesExhaustedError: if the budget is used up
        :raises ApiError: for every refusal that repeating cannot help
        """
        policy = self.retry or DEFAULT_RETRY
        sent = dict(query or {})
        if self.numbered:
            sent["requestId"] = str(uuid.uuid4())
        deadline = time.monotonic() + seconds_left(policy.budget_seconds)
        retry_count = 0
        renewals = 0
        while True:
            retry_after: float | None = None
            remedy = "run again, which resumes from the committed token"
            self.retries += retry_count > 0
            if self.numbered:
                sent["retryCount"] = str(retry_count)
            proof = self.authorization.headers()
            try:
                answer = self.transports.send(
                    method,
                    url,
                    query=dict(sent),
                    headers={**(headers or {}), **proof},
                    json_body=json_body,
                    form=form,
                    body=body,
                )
            except UnreachableError as error:
                reason = str(error)
                remedy = f"another run resumes from the committed token. {IF_NO_ANSWER}"
            else:
                if 200 <= answer.status < 300:
                    return answer
                renewals += self._renew_or_refuse(what, answer, proof, renewals)
                reason = answer.describe()
                retry_after = answer.retry_after
            retry_count += 1
            pause = policy.pause(retry_count, retry_after)
            if time.monotonic() + pause > deadline:
                raise RetriesExhaustedError(
                    f"{what}: no success within {policy.budget_seconds:g} s and {retry_count} attempts "
                    f"(last: {reason}). The outcome is unknown; {remedy}",
                    retry_after=retry_after,
                )
            log.warning("%s: %s; repeating in %.1f s (retry %d)", what, reason, pause, retry_count)
            time.sleep(pause)

    def _renew_or_refuse(self, what: str, answer: Answer, proof: Mapping[str, str], renewals: int) -> bool:
        """Raise the error of an answer that no repetition helps; True where the credentials were renewed."""
        error = self.refused(what, answer) if self.refused else None
        if error is not None:
            raise error
        if answer.status in _UNAUTHORIZED:
            if renewals == _MOST_RENEWALS or not self.authorization.renew(proof):
                raise AuthenticationError(
                    f"{what}: the service refuses the credentials ({answer.describe()}). Check the user, its "
                    "key or token, and the role's rights; opening the channel again does not help"
                )
            return True
        if not is_transient(answer):
            raise refusal(what, answer)
        return False


def refusal(what: str, answer: Answer) -> ApiError:
    """Build the error for an answer that is final."""
    if answer.status == 410:
        return PipeFailedOverError(
            f"{what}: the pipe failed over ({answer.describe()}); open the channels again by a new client",
            http_status=answer.status,
            code=answer.code,
        )
    return ApiError(f"{what}: {answer.describe()}", http_status=answer.status, code=answer.code)
