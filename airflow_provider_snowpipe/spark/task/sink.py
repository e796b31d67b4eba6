"""The channel sink: what one Spark task does with one partition of the source.

It opens the channel, which shuts out every older attempt, goes on just after the committed token that it
finds then, and ends only when the service has committed what it sent.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_snowpipe.spark.source import SourcePartition
from airflow_provider_snowpipe.streaming.arguments import OnUnknown, SentRows
from airflow_provider_snowpipe.streaming.auth import ScopedToken
from airflow_provider_snowpipe.streaming.batch import AdmittedParts, Part
from airflow_provider_snowpipe.streaming.channel import Channel, ChannelSession
from airflow_provider_snowpipe.streaming.checked_values import RowRules
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    ChannelFencedError,
    ChannelInvalidError,
    ConfigurationError,
    EncodingError,
    RetriesExhaustedError,
    SnowpipeError,
    TokenWentBackError,
)
from airflow_provider_snowpipe.streaming.http import Transports
from airflow_provider_snowpipe.streaming.limits import BatchLimits, RetryPolicy
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.progress import CHANNEL_MISSING
from airflow_provider_snowpipe.streaming.row_gate import Admission, DeadLetterFolder, OpenDeadLetters
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.driver.plan import JobPlan
    from airflow_provider_snowpipe.streaming.progress import ChannelStatus

log = logging.getLogger(__name__)

_TOKEN_LIFE_USED = 0.75
"""Share of the scoped token's remaining life in which a task reads; the rest is for the commit."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """What a task needs to know besides its partition; holds no credential.

    :param ca_bundle: PEM file of trusted roots, None for the environment's or the public ones
    :param wait_for_commit: False ends the task when its rows are received
    :param row_rules: how rows are checked before they are sent, None if they are not
    :param sdk_profile: the profile file with which Snowflake's SDK carries the rows, None for our own client
    :param skips_undecoded: True skips and counts records that cannot be decoded, where none are kept
    :param columns: the table's columns, which keys of rows are held against; none where they are not
    :param unknown_columns: what becomes of keys that match none of them
    """

    account_url: str
    ca_bundle: str | None
    pipe: PipeName
    wait_for_commit: bool
    commit_timeout: float
    limits: BatchLimits
    row_rules: RowRules | None = None
    sdk_profile: str | None = None
    skips_undecoded: bool = False
    columns: tuple[TableColumn, ...] = ()
    unknown_columns: OnUnknown = "ignore"

    @classmethod
    def of(cls, plan: JobPlan) -> SinkSettings:
        """The part of a plan that travels to the executors."""
        return cls(
            account_url=plan.account_url,
            ca_bundle=plan.ca_bundle,
            pipe=plan.pipe,
            wait_for_commit=plan.wait_for_commit,
            commit_timeout=plan.commit_timeout,
            limits=plan.limits,
            row_rules=plan.row_rules(),
            sdk_profile=plan.sdk_profile,
            skips_undecoded=plan.on_error == "continue",
            columns=plan.columns,
            unknown_columns=plan.unknown_columns,
        )


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """One partition with its channel and the position found before anything was opened.

    :param committed: the committed position when ``resume_at`` was found, None for NULL
    :param resume_at: the position just after it; found again if the channel has moved on
    """

    channel: str
    partition: SourcePartition[Any]
    committed: Offset | None
    resume_at: Any


@dataclass(frozen=True, slots=True)
class PartitionResult(SentRows):
    """What one attempt of a task achieved.

    :param position: the last position that the service has, None if the partition has no row
    :param passed: the last position that was read, where none of what was read is a row that is sent: nothing
        carries it to the service, and the driver sets it
    :param complete: False if the scoped token's life was too short for everything; another round with a
        fresh one goes on from what is committed then
    :param error_type: class name of an error that no further attempt can fix, None for success
    """

    channel: str
    position: Offset | None = None
    passed: Offset | None = None
    complete: bool = True
    error_type: str | None = None
    error: str = field(default="")


def load_partition(settings: SinkSettings, token: ScopedToken, work: PartitionWork) -> PartitionResult:
    """Send one partition's rows that are not committed yet; runs in a Spark task.

    :return: the result; an error that another attempt would meet again is part of it
    :raises SnowpipeError: for everything that another attempt may fix, such as a fenced channel
    """
    partition = work.partition

    def rows_after(committed: Offset | None) -> Iterator[Part]:
        resume_at = work.resume_at if committed == work.committed else partition.resume(committed)
        return iter(()) if resume_at is None else partition.read(resume_at, settings.limits)

    return load_channel(
        settings,
        token,
        work.channel,
        rows_after,
        known=work.committed,
        offset_class=partition.offset_class,
        gaps_legal=partition.gaps_legal,
        open_dead_letters=partition.open_dead_letters,
    )


def load_channel(
    settings: SinkSettings,
    token: ScopedToken,
    channel: str,
    rows_after: Callable[[Offset | None], Iterator[Part]],
    *,
    known: Offset | None = None,
    offset_class: type[Offset],
    gaps_legal: bool = False,
    open_dead_letters: OpenDeadLetters = DeadLetterFolder,
) -> PartitionResult:
    """Open a channel, send the rows behind its committed token, and wait for their commit.

    :param rows_after: the rows that come after a committed position, None for NULL
    :param known: what was committed when the run began, None for NULL; a channel that has less now was
        dropped or reset, and gets no row
    :param gaps_legal: True when the source may skip positions
    :param open_dead_letters: opens the store of rows that do not fit the table and are put aside
    :return: the result; an error that another attempt would meet again is part of it
    :raises SnowpipeError: for everything that another attempt may fix, such as a fenced channel
    """
    open_session: Callable[..., ChannelSession] = partial(Channel.open, limits=settings.limits)
    if settings.sdk_profile is not None:
        open_session = partial(SdkChannel.open, profile=settings.sdk_profile, ca_bundle=settings.ca_bundle)
    stop_at = time.time() + _TOKEN_LIFE_USED * token.remaining_seconds()
    try:
        # Not closed: its connections are those of all tasks of this process.
        client = SnowpipeClient(
            settings.account_url,
            token,
            settings.pipe,
            transports=process_transports(os.getpid(), settings.ca_bundle),
        )
        with open_session(client, channel, offset_class, gaps_legal=gaps_legal) as session:
            committed = session.progress.committed
            if known is not None and (committed is None or committed < known):
                raise went_back(channel, f"went from {known} back to {committed or 'NULL'}")
            admission = Admission(
                settings.row_rules,
                settings.columns,
                settings.unknown_columns,
                channel,
                offset_class,
                committed,
                open_dead_letters,
                skips_undecoded=settings.skips_undecoded,
            )
            began = time.monotonic()
            parts = AdmittedParts(rows_after(committed), admission.admit, stop_at)
            for part in parts:
                session.append(part.body, part.start, part.end, rows=part.rows)
            session.flush()
            received = time.monotonic()
            sent = session.progress.sent
            if sent is not None and settings.wait_for_commit:
                session.wait_for_commit(sent, timeout=settings.commit_timeout)
                admission.settle(sent)
            waited = time.monotonic() - received
    except SnowpipeError as error:
        return _failed(channel, token, error)
    return PartitionResult(
        channel=channel,
        position=sent or committed,
        passed=parts.passed,
        append_seconds=received - began,
        commit_seconds=waited,
        **asdict(session.counters),
        retries=client.http.retries,
        dead_lettered=admission.dead_lettered,
        undecoded=admission.undecoded,
        unknown_columns=admission.unknown_columns,
        complete=parts.complete,
    )


def went_back(channel: str, how: str) -> TokenWentBackError:
    """The error of a channel whose token somebody took away.

    :param how: what became of it, in words
    """
    return TokenWentBackError(
        f"channel {channel!r} {how} while this run was under way. Rows that it had committed may be in the "
        "table; going on would load them again, so that nothing more was sent. Set the token to what the "
        "table holds (SnowpipeResetOffsetOperator), or leave it where the table is to be loaded anew, and "
        "then run again"
    )


def _failed(channel: str, token: ScopedToken, error: SnowpipeError) -> PartitionResult:
    """The result that another attempt would come to as well; an error that it may fix is raised.

    Where the channel is gone, another attempt would make it anew and begin with rows that this one has sent.
    """
    if isinstance(error, ChannelInvalidError) and error.code == CHANNEL_MISSING:
        error = went_back(channel, "was dropped, and its token with it,")
    if error.spark_may_retry:
        raise error
    if isinstance(error, AuthenticationError) and token.remaining_seconds() <= 0:
        return PartitionResult(channel, complete=False)
    text = str(error)
    named = text if repr(channel) in text else f"channel {channel!r}: {text}"
    return PartitionResult(channel, error_type=type(error).__name__, error=named)


@lru_cache(maxsize=4)
def process_transports(process: int, ca_bundle: str | None) -> Transports:
    """The connections that all tasks of an executor's Python process share, kept alive between them.

    :param process: the process's id; connections must not be inherited by a forked worker
    :param ca_bundle: PEM file of trusted roots, None for the environment's or the public ones
    """
    return Transports(ca_bundle)


# pragma: no mutate start (tested with the SDK itself: tests/integration/test_sdk_transport.py)
# -- The writer of one channel through Snowflake's own SDK, for channels above what inline bodies carry --
#
# The SDK puts what it has buffered into files of up to 64 MB as soon as it is more than 1 MB, or when the
# service asks for that; no other public client does (observed with SDK 1.9.1). It signs in by itself, with a
# profile file of the machine where it runs.

_EXTRA = "airflow-provider-snowpipe[sdk]"
_FENCED = "STALE_CONTINUATION_TOKEN_SEQUENCER"
_FULL = frozenset({"ReceiverSaturated", "MemoryThresholdExceeded", "MemoryThresholdExceededInContainer"})
_SIGN_IN = frozenset({"AuthTokenError", "SfApiAuthError"})
_UNANSWERED = frozenset({"HttpRetriesExhaustedError", "HttpRetryableClientError"})
_SETTINGS = frozenset({"ConfigError", "InvalidArgument"})
_BUDGETS = ("mgmt", "data", "misclassified_404")
_SIGN_IN_SECONDS = 10
"""How long refused credentials are tried again: a new key takes some seconds, a wrong one stays wrong."""
_MOST_WAITS_FOR_ROOM = 5


class SdkChannel(ChannelSession):
    """The only writer of one channel, whose rows the official SDK carries.

    Lines go through the SDK as they are: it is given each as JSON that is written already.

    :param opened: the channel's state when the SDK opened it
    :param sdk_client: the SDK's client, closed with the channel
    :param gaps_legal: True when the source may skip positions
    :param seconds: how long a flush may take
    """

    def __init__(
        self,
        client: SnowpipeClient,
        name: str,
        offset_class: type[Offset],
        opened: ChannelStatus,
        *,
        sdk_client: Any,
        sdk_channel: Any,
        gaps_legal: bool,
        seconds: float,
    ) -> None:
        super().__init__(client, name, offset_class, opened, gaps_legal=gaps_legal)
        self._sdk_client = sdk_client
        self._sdk = sdk_channel
        self._seconds = seconds
        self._closed = False

    @classmethod
    def open(
        cls,
        client: SnowpipeClient,
        name: str,
        offset_class: type[Offset],
        *,
        profile: str,
        ca_bundle: str | None = None,
        gaps_legal: bool = False,
        retry: RetryPolicy | None = None,
        uncommitted_timeout: float = 60.0,
    ) -> Self:
        """Open a channel for writing and shut out every older writer.

        Rows that an older writer left uncommitted are waited for; after ``uncommitted_timeout`` the SDK
        discards them, which loses nothing: this writer starts just after the committed token.

        :param profile: path of the SDK's profile file, which has the account's address and the credentials
        :param ca_bundle: PEM file of trusted roots, None for the environment's or the public ones
        :param gaps_legal: True when the source may skip positions
        :param retry: its budget is that of every request of the SDK, which would else go on for ten hours
        :param uncommitted_timeout: seconds
        :raises ConfigurationError: if the SDK is not installed or there is no such profile
        :raises AuthenticationError: if the service refuses the profile's credentials
        :raises OffsetTokenError: if the committed token does not have that format; nothing was sent
        """
        known = client.channel_statuses([name])[name].committed
        if known is not None:
            offset_class.parse(known, channel=name)
        budget = (retry or RetryPolicy()).budget_seconds
        properties = {f"{what}_retry_total_backoff_seconds": str(int(budget)) for what in _BUDGETS}
        properties["non_scoped_auth_failure_retry_total_backoff_seconds"] = str(
            int(min(budget, _SIGN_IN_SECONDS))
        )
        properties["open_channel_409_retry_total_backoff_seconds"] = str(int(uncommitted_timeout))
        _check_profile(profile)
        streaming = _sdk(ca_bundle)
        pipe = client.pipe
        with _translated(name, "open"):
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
                offset_class,
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
        """Append rows; the SDK buffers them, and sends what it has every second or every 64 MB.

        :raises ContinuityError: if the rows do not follow the last ones; the channel stays usable
        :raises SnowpipeError: if an earlier append failed; the channel is dead
        """
        from msgspec import Raw

        self._refuse(body, rows, closed=self._closed)
        lines = list(map(Raw, filter(bytes.strip, bytes(body).split(b"\n"))))
        if len(lines) != rows:
            raise EncodingError(
                f"channel {self.name!r}: rows {start} to {end} are {rows} rows in {len(lines)} lines: give "
                "one line a row"
            )
        self.progress.accept(start, end)
        self._append_when_there_is_room(lines, str(start), str(end))
        self.counters.rows += rows
        self.counters.bytes += len(body)
        self.counters.requests += 1

    def flush(self) -> None:
        """Wait until the service has received everything appended so far.

        :raises SnowpipeError: if it has not
        """
        with _translated(self.name, "append to"):
            self._sdk.wait_for_flush(int(self._seconds))

    def close(self, *, flush: bool = True) -> None:
        """End the session. The channel and its token stay on the service.

        :param flush: False leaves what is buffered unsent (it lies after the committed token)
        :raises SnowpipeError: if flushing failed
        """
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
        raise ConfigurationError(f"sdk_profile {profile!r} is no JSON file") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"sdk_profile {profile!r} is no JSON object")


def _sdk(ca_bundle: str | None) -> Any:
    """The SDK, which reads its environment as it is loaded and writes its log to standard output."""
    os.environ.setdefault("SS_LOG_TARGET", "stderr")
    os.environ.setdefault("SS_LOG_LEVEL", "warn")
    if ca_bundle:
        os.environ["SSL_CERT_FILE"] = ca_bundle
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


# pragma: no mutate end
