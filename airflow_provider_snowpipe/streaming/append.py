"""Rows of a task in one channel, without Spark: numbered, appended and committed."""

from __future__ import annotations

import codecs
import datetime as dt
import json
import logging
import re
import time
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.streaming.admin import TokenChange, compare_and_set, mark_reported
from airflow_provider_snowpipe.streaming.arguments import SentRows
from airflow_provider_snowpipe.streaming.batch import AdmittedParts, Part
from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.checkpoint import (
    ChannelSource,
    OnImbalance,
    check_balance,
    excess_of,
)
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.commits import decide
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    ContinuityError,
    EncodingError,
    OffsetTokenError,
    RowsRejectedError,
    SourceChangedError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.names import counted
from airflow_provider_snowpipe.streaming.offsets import BatchDigestOffset, Offset
from airflow_provider_snowpipe.streaming.progress import ChannelStatus

if TYPE_CHECKING:
    from airflow_provider_snowpipe.streaming.row_gate import Admission

log = logging.getLogger(__name__)

# -- A bounded number of rows with a position each: what an append without Spark sends, and what it skips --

_PART_BYTES = 256 * 1024
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
"""By what files begin with."""
_BETWEEN_ROWS = re.compile(r"[ \t\n\r,]*")


@dataclass(frozen=True, slots=True)
class RowLimits:
    """How much is taken without Spark."""

    rows: int = 100_000
    raw_bytes: int = 64 * 1024 * 1024

    def check(self, rows: int, raw_bytes: int, origin: str) -> None:
        """Refuse what is too much."""
        if rows > self.rows or raw_bytes > self.raw_bytes:
            raise ConfigurationError(
                f"{origin}: more than {self.rows:,} rows or {self.raw_bytes:,} bytes, the most that are "
                "appended from a task's memory. Use SnowpipeStreamOperator, which loads any amount with "
                "Spark, or raise max_rows and max_bytes"
            )


@dataclass(frozen=True, slots=True)
class NumberedRows:
    """Rows as NDJSON lines without their newlines, and the positions of all, strictly growing."""

    lines: Sequence[bytes]
    offsets: Sequence[Offset]

    def after(self, committed: Offset | None) -> NumberedRows:
        """Leave out the rows that are committed already."""
        if committed is None:
            return self
        start = bisect_right(self.offsets, committed)
        return NumberedRows(self.lines[start:], self.offsets[start:])

    def parts(self) -> Iterator[Part]:
        """Cut the rows into parts of some size."""
        start, size = 0, 0
        for index, line in enumerate((*self.lines, b"")):
            if index > start and (size + len(line) >= _PART_BYTES or index == len(self.lines)):
                body = b"\n".join(self.lines[start:index]) + b"\n"
                offsets = self.offsets[start:index]
                yield Part(body, offsets[0], offsets[-1], len(offsets), offsets.__getitem__)
                start, size = index, 0
            size += len(line) + 1


def lines_of_rows(rows: Iterable[Any], limits: RowLimits) -> list[bytes]:
    """Write rows as NDJSON lines."""
    lines: list[bytes] = []
    total = 0
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise EncodingError(
                f"row {number} is {type(row).__name__}: give rows as mappings of column to value"
            )
        try:
            line = json.dumps(dict(row), allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
        except (TypeError, ValueError) as error:
            raise EncodingError(
                f"row {number} has no JSON form ({error}): give texts, numbers, lists or mappings"
            ) from None
        if not all(isinstance(key, str) for key in row):
            _require_distinct(number, row)
        total += len(line) + 1
        limits.check(number, total, "the rows")
        lines.append(line)
    return lines


def lines_as_written(text: str, rows: int) -> list[bytes]:
    """Cut the JSON text of rows into a line for each as it stands: read by Python, fractions lose digits."""
    decoder, lines, at = json.JSONDecoder(), list[bytes](), 0
    if text.lstrip().startswith("["):
        at = text.index("[") + 1
    for _ in range(rows):
        at = _BETWEEN_ROWS.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        _, end = decoder.raw_decode(text, at)
        # JSON has line ends between its tokens only, where a blank means the same.
        lines.append(text[at:end].replace("\n", " ").replace("\r", " ").encode())
        at = end
    return lines


def _require_distinct(number: int, row: Mapping[Any, Any]) -> None:
    """Refuse keys that are one text in JSON, so that the row would lose all values but one."""
    found: dict[str, Any] = {}
    for key in row:
        (text,) = json.loads(json.dumps({key: None}))
        if text in found:
            raise EncodingError(
                f"row {number} has the keys {found[text]!r} and {key!r}, one in JSON: give each once, as text"
            )
        found[text] = key


def lines_of_ndjson(body: bytes, limits: RowLimits, origin: str) -> list[bytes]:
    """Cut NDJSON into its lines; empty lines are not rows."""
    limits.check(0, len(body), origin)
    kind = next((kind for begin, kind in _COMPRESSED.items() if body.startswith(begin)), None)
    if kind is not None:
        raise ConfigurationError(
            f"{origin} is compressed by {kind}: give it without, or use SnowpipeStreamOperator"
        )
    body = body.removeprefix(codecs.BOM_UTF8)
    lines = [line for line in body.splitlines() if line.strip()]
    limits.check(len(lines), len(body), origin)
    return lines


def lines_of_columns(
    names: Sequence[str], rows: Sequence[Sequence[Any]], limits: RowLimits, origin: str
) -> list[bytes]:
    """Write the result of a query as NDJSON lines, with the forms that Arrow gives its values.

    Objects and lists stay as they are: Arrow would give all objects of a column the keys of all of them.
    """
    import pyarrow as pa

    from airflow_provider_snowpipe.streaming.ndjson import (
        encode_ndjson,
        refuse_duplicate_names,
        with_documents,
    )

    limits.check(len(rows), 0, origin)
    if not rows:
        return []
    refuse_duplicate_names(names)
    columns, documents = {}, {}
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        try:
            texts = _documents(values)
            if texts is None:
                columns[name] = _arrow_values(values)
            else:
                documents[name] = texts
        except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
            raise EncodingError(
                f"{origin}: column {name!r} has values without a common type ({error}): cast it in the query"
            ) from None
    lines = encode_ndjson(pa.table(columns)).splitlines() if columns else [b"{}"] * len(rows)
    for name, texts in documents.items():
        lines = with_documents(lines, str(name), texts)
    limits.check(len(lines), sum(map(len, lines)) + len(lines), origin)
    return lines


def _documents(values: Sequence[Any]) -> list[bytes] | None:
    """JSON of a column's values one by one, None if Arrow writes them: none is an object or a list."""
    if not any(isinstance(value, dict | list) for value in values):
        return None
    try:
        return [
            json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
            for value in values
        ]
    except TypeError:
        if any(isinstance(value, dict) for value in values):
            raise
        return None  # such as an array of timestamps


def _arrow_values(values: Sequence[Any]) -> Any:
    """A column's values as an Arrow array, in which each is what it was."""
    import pyarrow as pa

    # Arrow takes texts for bytes, and cuts a date's time of day and a time's zone, in lists as well.
    leaves = list(_leaves(values))
    times = {
        (isinstance(one, dt.datetime), getattr(one, "tzinfo", None) is None)
        for one in leaves
        if isinstance(one, dt.date)
    }
    if len(times) > 1:
        raise TypeError("dates and timestamps, or timestamps with and without a zone")
    texts = {isinstance(one, str) for one in leaves if isinstance(one, str | bytes | bytearray | memoryview)}
    if len(texts) > 1:
        raise TypeError("texts and bytes")
    if any(isinstance(one, dt.time) and one.tzinfo is not None for one in leaves):
        raise TypeError("times with a zone")
    # Integers of more than 64 bits, as NUMBER(38) has them, and those beside decimals are decimals to Arrow.
    exact = any(isinstance(one, Decimal) or (type(one) is int and one.bit_length() > 63) for one in values)
    return pa.array([Decimal(one) if type(one) is int else one for one in values] if exact else values)


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for one in values:
        if isinstance(one, list | tuple):
            yield from _leaves(one)
        else:
            yield one


def numbered_by_batch(lines: Sequence[bytes], batch: int) -> NumberedRows:
    """Give each row the position ``batch:row/digest``, counted from 1.

    :param batch: grows from run to run, and is the same on every try of a run
    """
    digests = accumulate(lines, lambda digest, line: zlib.crc32(line, digest), initial=0)
    offsets = [BatchDigestOffset(batch, row, digest) for row, digest in enumerate(digests)]
    return NumberedRows(lines, offsets[1:])


def numbered_by_column(
    lines: Sequence[bytes], column: str, offset_class: type[Offset], *, channel: str
) -> NumberedRows:
    """Take each row's position from one of its columns."""
    offsets: list[Offset] = []
    for number, line in enumerate(lines, start=1):
        value = _field(line, column)
        if value is None or isinstance(value, (bool, float, list, dict)):
            raise ConfigurationError(
                f"row {number}: column {column!r}, which numbers rows, is {value!r}: give text or an integer"
            )
        try:
            offsets.append(offset_class.parse(str(value), channel=channel))
        except OffsetTokenError:
            raise OffsetTokenError(
                f"channel {channel!r}, row {number}: column {column!r}, which numbers the rows, is "
                f"{str(value)[:200]!r}, not a position of the format {offset_class.format_name!r} (for "
                f"example {offset_class.example!r}): name the right one, offset_format=…; nothing was sent"
            ) from None
    for number, (before, offset) in enumerate(pairwise(offsets), start=2):
        if not before < offset:
            raise ContinuityError(
                f"row {number}: its position {offset} does not come after {before}; nothing was sent. Sort "
                f"the rows by {column!r} and leave no two with the same value"
            )
    return NumberedRows(lines, offsets)


def _field(line: bytes, column: str) -> Any:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row.get(column) if isinstance(row, dict) else None


# -- Appending a bounded number of rows to one channel, exactly once -------------------------------------


@dataclass(frozen=True, slots=True)
class SmallLoad(SentRows):
    """What an append did.

    :param target_token: the token that proves the rows committed, None when there were none
    :param skipped: rows left out because they were committed already
    :param errors: rejected rows of the channel that were reported before
    :param last_error: the last rejected row, in the service's words; None where it rejected none
    """

    channel: str
    from_token: str | None
    target_token: str | None
    skipped: int
    rejected: int
    committed: bool
    errors: int = 0
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class AppendRules:
    """How rows are appended.

    :param batch: the batch that the rows' positions are of, None where a column numbers them
    :param is_batch_of_run: True where the batch is the run's own, so that no other run has rows of it
    """

    batch: int | None = None
    on_error: str = "abort"
    on_older_batch: str = "fail"
    wait_for_commit: bool = True
    commit_timeout: float = 600.0
    on_imbalance: OnImbalance = "warn"
    is_batch_of_run: bool = False


def rows_to_send(
    rows: NumberedRows, committed: Offset | None, rules: AppendRules, *, channel: str
) -> NumberedRows:
    """Leave out what the channel has committed, or refuse what cannot be distinguished."""
    if rules.batch is None or not isinstance(committed, BatchDigestOffset):
        return rows.after(committed)
    begun = committed.row if committed.batch == rules.batch else 0
    if begun and rows.offsets[:begun][-1:] != [committed]:
        raise SourcePositionError(
            f"channel {channel!r} has committed {committed}, but batch {rules.batch} has other rows now "
            f"({len(rows.lines)}). Nothing was sent. Give the same rows on every try, in the same order, or "
            "a new batch"
        )
    if committed.batch > rules.batch:
        if rules.on_older_batch == "skip":
            return NumberedRows((), ())
        raise SourcePositionError(
            f"channel {channel!r} has committed {committed}, which lies after batch {rules.batch}: these "
            "rows cannot be distinguished from loaded ones. Give a later batch or another channel, or choose "
            f"on_older_batch='skip' where batch {rules.batch} is known to be loaded"
        )
    return rows.after(committed)


def _refuse_other_run(channel: str, run: str | None, source: ChannelSource) -> None:
    """Refuse rows of a run's own batch that another run, or another instance of the task, has committed."""
    if run not in (None, source.run):
        raise SourceChangedError(
            f"channel {channel!r} has rows of this batch by {run}, and this is {source.run}: another "
            "instance of the task, or another run, appends to the same channel, and these rows would pass "
            "for its own. Nothing was sent. Give each instance a channel of its own, or each run a batch"
        )


def append_to_channel(
    client: SnowpipeClient,
    channel: str,
    rows: NumberedRows,
    source: ChannelSource,
    rules: AppendRules,
    admission: Callable[[Offset | None], Admission] | None = None,
    begins: Callable[[ChannelStatus, Offset], None] = lambda *_: None,
) -> SmallLoad:
    """Append rows after the committed ones, and wait for their commit.

    :param begins: keeps up to which position a channel is about to get rows, or refuses them; of rows that a
        column numbers, where it has no token
    :raises SourceChangedError: if the channel has committed rows of another source; nothing was sent
    :raises UncommittedRowsError: if an earlier writer's rows are not committed in time; nothing was sent
    """
    status: ChannelStatus | None = None
    with Channel.open(
        client,
        channel,
        source,
        gaps_legal=rules.batch is None,
        uncommitted_timeout=rules.commit_timeout,
        # What is uncommitted may be an earlier run's batch, which is not among these rows.
        discard_uncommitted=False,
    ) as writer:
        check_balance(channel, writer.start.excess, rules.on_imbalance)
        from_token = writer.status_at_open.committed
        left = rows_to_send(rows, writer.progress.committed, rules, channel=channel)
        if rules.is_batch_of_run and len(left.lines) < len(rows.lines):
            _refuse_other_run(channel, writer.start.run, source)
        if left.lines and (from_token is None or rules.batch is not None):
            begins(writer.status_at_open, left.offsets[-1])
        began = time.monotonic()
        admitted = None if admission is None else admission(writer.progress.committed)
        parts = AdmittedParts(left.parts(), (lambda part: part) if admitted is None else admitted.admit)
        for part in parts:
            writer.append(part.body, part.start, part.end, rows=part.rows)
        passed = parts.passed  # the last position, where no append carries it
        writer.flush()
        received = time.monotonic()
        if rules.wait_for_commit and passed is None:
            status = writer.wait_for_commit(timeout=rules.commit_timeout)
            if admitted is not None:
                admitted.settle(writer.progress.sent)
        committed = time.monotonic()
        counters, found, baseline = writer.counters, writer.status_at_open, writer.start.errors
        position = passed or writer.progress.sent or writer.progress.committed
        reached = None if position is None else writer.token(position)
    if passed is not None:
        compare_and_set(client, TokenChange(channel, str(reached), found.committed))
        status = found
    excess = 0 if status is None else excess_of(status)
    if status is None and not left.lines:
        status = found
    rejected = 0 if status is None else decide(status, None, rejected_baseline=baseline).rejected
    load = SmallLoad(
        channel=channel,
        from_token=from_token,
        target_token=reached if left.offsets else from_token,
        skipped=len(rows.lines) - len(left.lines),
        rejected=rejected,
        committed=rules.wait_for_commit or not left.lines or passed is not None,
        errors=baseline,
        last_error=status.last_error if rejected and status is not None else None,
        append_seconds=received - began,
        commit_seconds=committed - received if status is not None else 0.0,
        **asdict(counters),
        retries=client.http.retries,
        dead_lettered=0 if admitted is None else admitted.dead_lettered,
        unknown_columns={} if admitted is None else admitted.unknown_columns,
    )
    if rejected and status is not None:
        last = status.last_error_message
        error = RowsRejectedError(
            f"channel {channel!r}: the service rejected {counted(rejected, 'row')} and committed the "
            f"others; the last error: {last or 'no message'}. Fix those rows and append them as a batch of "
            "their own, or accept them with on_error='continue'",
            channel=channel,
            rejected=rejected,
            last_error=last,
            load=load,
        )
        log.warning("%s", error)
        mark_reported(client, {channel: status})
        if rules.on_error != "continue":
            raise error
    check_balance(channel, excess, rules.on_imbalance)
    return load
