"""The writer of one channel through Snowflake's own SDK, for channels above what inline bodies carry.

The SDK puts what it has buffered into files of up to 64 MB as soon as it is more than 1 MB, or when the
service asks for that; no other public client does (observed with SDK 1.9.1). It signs in by itself, with a
profile file of the machine where it runs.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_snowpipe.streaming.channel import ChannelSession
from airflow_provider_snowpipe.streaming.checkpoint import ChannelSource
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    ChannelFencedError,
    ChannelInvalidError,
    ConfigurationError,
    EncodingError,
    RetriesExhaustedError,
)
from airflow_provider_snowpipe.streaming.limits import RetryPolicy

if TYPE_CHECKING:
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient
    from airflow_provider_snowpipe.streaming.offsets import Offset
    from airflow_provider_snowpipe.streaming.progress import ChannelStatus

log = logging.getLogger(__name__)

_CA_VARIABLE = "SSL_CERT_FILE"
_EXTRA = "airflow-provider-snowpipe[sdk]"
_FENCED = "STALE_CONTINUATION_TOKEN_SEQUENCER"
_FULL = frozenset({"ReceiverSaturated", "MemoryThresholdExceeded", "MemoryThresholdExceededInContainer"})
_SIGN_IN = frozenset({"AuthTokenError", "SfApiAuthError"})
_UNANSWERED = frozenset({"HttpRetriesExhaustedError", "HttpRetryableClientError"})
_SETTINGS = frozenset({"ConfigError", "InvalidArgument"})
_BUDGETS = ("mgmt", "data", "misclassified_404")
_SIGN_IN_SECONDS = 10
"""How long refused credentials are tried again: a new key takes some seconds, a wrong one stays wrong."""
_UNCOMMITTED_SECONDS = 60
_MOST_WAITS_FOR_ROOM = 5


class SdkChannel(ChannelSession):
    """The only writer of one channel, whose rows the official SDK carries.

    Lines go through the SDK as they are: it is given each as JSON that is written already.

    :param seconds: how long a flush may take
    """

    def __init__(
        self,
        client: SnowpipeClient,
        name: str,
        source: ChannelSource,
        opened: ChannelStatus,
        *,
        sdk_client: Any,
        sdk_channel: Any,
        gaps_legal: bool,
        seconds: float,
    ) -> None:
        super().__init__(client, name, source, opened, gaps_legal=gaps_legal)
        self._sdk_client = sdk_client
        self._sdk = sdk_channel
        self._seconds = seconds
        self._closed = False

    @classmethod
    def open(
        cls,
        client: SnowpipeClient,
        name: str,
        source: ChannelSource,
        *,
        profile: str,
        ca_bundle: str | None = None,
        gaps_legal: bool,
    ) -> Self:
        """Open a channel for writing and shut out every older writer.

        Rows that an older writer left uncommitted are waited for; after a minute the SDK discards them, which
        loses nothing: this writer starts just after the committed token.

        :param profile: path of the SDK's profile file, which has the account's address and the credentials
        """
        source.start(client.channel_statuses([name])[name])
        # Of every request, which the SDK repeats for ten hours otherwise.
        budget = RetryPolicy().budget_seconds
        seconds = dict.fromkeys(_BUDGETS, budget) | {
            "non_scoped_auth_failure": min(budget, _SIGN_IN_SECONDS),
            "open_channel_409": _UNCOMMITTED_SECONDS,
        }
        properties = {f"{what}_retry_total_backoff_seconds": str(int(one)) for what, one in seconds.items()}
        _check_profile(profile)
        pipe = client.pipe
        with _trusting(ca_bundle), _translated(name, "open"):
            streaming = _sdk()
            sdk_client = streaming.StreamingIngestClient(
                f"airflow-provider-snowpipe-{os.getpid()}",
                pipe.database,
                pipe.schema,
                pipe.pipe,
                profile_json=profile,
                properties=properties,
            )
            try:
                sdk_channel, _ = sdk_client.open_channel(name)
            except BaseException:
                sdk_client.close()
                raise
        try:
            # What the SDK reports is as old as its cache; after its open no other writer can commit.
            opened = client.channel_statuses([name])[name]
            return cls(
                client,
                name,
                source,
                opened,
                sdk_client=sdk_client,
                sdk_channel=sdk_channel,
                gaps_legal=gaps_legal,
                seconds=budget,
            )
        except BaseException:
            _end(name, sdk_channel, sdk_client)
            raise

    def append(self, body: bytes | memoryview, start: Offset, end: Offset, *, rows: int) -> None:
        """Append rows; the SDK buffers them, and sends what it has every second or every 64 MB."""
        from msgspec import Raw

        self._refuse(body, rows, closed=self._closed)
        lines = list(map(Raw, filter(bytes.strip, bytes(body).split(b"\n"))))
        if len(lines) != rows:
            raise EncodingError(
                f"channel {self.name!r}: rows {start} to {end} are {rows} rows in {len(lines)} lines: give "
                "one line a row"
            )
        self.progress.accept(start, end)
        self._append_when_there_is_room(lines, *self._tokens(start, end, rows))
        self.counters.rows += rows
        self.counters.bytes += len(body)
        self.counters.requests += 1

    def flush(self) -> None:
        """Wait until the service has received everything appended so far."""
        with _translated(self.name, "append to"):
            self._sdk.wait_for_flush(int(self._seconds))

    def close(self, *, flush: bool = True) -> None:
        """End the session; what is buffered is unsent without a flush. The channel and its token stay."""
        if self._closed:
            return
        try:
            if flush:
                self.flush()
        finally:
            self._closed = True
            _end(self.name, self._sdk, self._sdk_client)

    def _append_when_there_is_room(self, lines: list[Any], start: str, end: str) -> None:
        """Append; where the SDK's buffers are full, wait until they are sent."""
        from snowflake.ingest.streaming import StreamingIngestError

        for _ in range(_MOST_WAITS_FOR_ROOM):
            try:
                with _translated(self.name, "append to", but=_FULL):
                    self._sdk.append_rows(lines, start, end)
            except StreamingIngestError:
                self.flush()
            else:
                return
        raise RetriesExhaustedError(
            f"channel {self.name!r}: the SDK has no room for rows {start} to {end} although it has sent all "
            "others: give the executors more memory, or smaller batch_limits raw_bytes"
        )


def _check_profile(profile: str) -> None:
    """Check that the SDK's profile file is there and is JSON, without showing what is in it."""
    try:
        with open(profile, encoding="utf-8") as file:
            found = json.load(file)
    except OSError as error:
        raise ConfigurationError(
            f"sdk_profile {profile!r} cannot be read here ({error.strerror}): every machine that runs "
            "executors needs it"
        ) from None
    except ValueError:
        raise ConfigurationError(f"sdk_profile {profile!r} is not a JSON file") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"sdk_profile {profile!r} is not a JSON object")


_environment = Lock()


@contextmanager
def _trusting(ca_bundle: str | None) -> Iterator[None]:
    """Open a client of the SDK with other roots, which it takes from the environment as it opens (1.9.1).

    The variable is put back at once, for other libraries of the process read it, too.
    """
    with _environment:
        before = os.environ.get(_CA_VARIABLE)
        try:
            if ca_bundle:
                os.environ[_CA_VARIABLE] = ca_bundle
            yield
        finally:
            if before is None:
                os.environ.pop(_CA_VARIABLE, None)
            else:
                os.environ[_CA_VARIABLE] = before


def _sdk() -> Any:
    """The SDK, which reads its environment as it is loaded and writes its log to standard output."""
    os.environ.setdefault("SS_LOG_TARGET", "stderr")
    os.environ.setdefault("SS_LOG_LEVEL", "warn")
    try:
        from snowflake.ingest import streaming
    except ImportError as error:
        raise ConfigurationError(
            f"sdk_profile is set, and Snowflake's SDK does not load here ({error}): install {_EXTRA} where "
            "executors run"
        ) from None
    return streaming


def _end(channel: str, sdk_channel: Any, sdk_client: Any) -> None:
    """Close the SDK's side; what it could not send lies after the committed token."""
    from snowflake.ingest.streaming import StreamingIngestError

    try:
        sdk_channel.close(wait_for_flush=False)
        sdk_client.close(wait_for_flush=False)
    except (StreamingIngestError, TimeoutError) as error:
        log.warning("channel %r: the SDK did not close it: %s", channel, error)


@contextmanager
def _translated(channel: str, action: str, *, but: frozenset[str] = frozenset()) -> Iterator[None]:
    """Raise the SDK's errors as ours; those of the codes ``but`` as they are."""
    from snowflake.ingest.streaming import StreamingIngestError

    try:
        yield
    except TimeoutError:
        raise RetriesExhaustedError(
            f"channel {channel!r}: the SDK did not {action} it in time; run again, which resumes from the "
            "committed token"
        ) from None
    except StreamingIngestError as error:
        code = error.error_code.value
        if code in but:
            raise
        text = f"channel {channel!r}: the SDK could not {action} it ({code}): {error}"
        if code in _SIGN_IN:
            raise AuthenticationError(f"{text}; see the user and the key of sdk_profile") from None
        if code in _UNANSWERED:
            raise RetriesExhaustedError(text) from None
        if code in _SETTINGS:
            raise ConfigurationError(f"{text}; see sdk_profile") from None
        kind = ChannelFencedError if _FENCED in str(error) else ChannelInvalidError
        raise kind(text, channel=channel, http_status=error.http_status_code, code=code) from None
