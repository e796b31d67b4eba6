"""Where a source log is: numbered entries and snapshots, as Parquet files in a folder or a bucket."""

from __future__ import annotations

import datetime as dt
import io
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from arro3.core import Table
from arro3.io import read_parquet, write_parquet

from airflow_provider_snowpipe.spark.sources.files.log import EVENTS, SourceLog, event_table
from airflow_provider_snowpipe.spark.sources.files.storage import Storage
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError

_VERSION = "1"
_ENTRIES_BEFORE_A_SNAPSHOT = 24
_ATTEMPTS = 20
_READ_AT_ONCE = 16
_BATCH_ROWS = 1 << 16
_NAME = re.compile(r"(?P<kind>[es])(?P<number>[0-9]{12})\.parquet")


@dataclass(frozen=True, slots=True)
class LogStore:
    """The entries of one log, in a folder of a storage.

    :param storage: the folder
    :param source: the source, for people
    :param target: the account and the pipe
    """

    storage: Storage
    source: str
    target: str

    def read(self) -> SourceLog:
        """Read the log, one without an id where there is none; a damaged one is refused."""
        missing = ""
        for _ in range(_ATTEMPTS):
            try:
                kept = self._names()
            except OSError as error:
                raise self._unusable("read", error) from None
            snapshot = max(kept["s"], default=0)
            entries = sorted(one for one in kept["e"] if one > snapshot)
            last = max(entries, default=snapshot)
            lacks = sorted(set(range(snapshot + 1, last + 1)) - set(entries))
            if lacks:
                missing = f"entry {lacks[0]} is missing"
                continue
            names = ([_name("s", snapshot)] if snapshot else []) + [_name("e", one) for one in entries]
            try:
                with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
                    tables = list(pool.map(self._table, names))
            except FileNotFoundError as error:  # a snapshot has replaced it meanwhile
                missing = f"{error.filename} is missing"
                continue
            ids = {one.schema.metadata.get(b"log", b"").decode() for one in tables}
            if len(ids) > 1:
                raise self._error(f"its entries are those of {len(ids)} logs")
            origin = tables[-1].schema.metadata[b"source"].decode() if tables else ""
            return SourceLog(ids.pop() if ids else "", origin, last, _joined(tables))
        raise self._error(missing)

    def append(self, log: SourceLog, rows: Sequence[Mapping[str, Any]], run: str = "") -> SourceLog | None:
        """Add an entry behind those that were read.

        :param log: the log as it was read; an id is made for one that has none
        :param rows: events, each with ``event`` and ``number``, and the columns of a unit where it makes one
        :return: the log with the entry; None where somebody else has added one: read again
        :raises ConfigurationError: if the folder cannot be written
        """
        log_id, number = log.log_id or uuid4().hex[:16], log.number + 1
        at = int(dt.datetime.now(dt.UTC).timestamp() * 1e9)
        table = event_table([{"at_ns": at, "run": run, **one} for one in rows])
        try:
            if not self.storage.create(_name("e", number), self._bytes(table, log_id)):
                return None
            # Whoever has read long ago finds the number free when a snapshot has replaced its entry, or when
            # the log is not there any more.
            names = self._names()
            if max(names["s"], default=0) >= number or not self._has(log, names):
                self.storage.delete(_name("e", number))
                return None
        except OSError as error:
            raise self._unusable("written", error) from None
        added = SourceLog(log_id, self.source, number, _joined([log.events, table]))
        if number % _ENTRIES_BEFORE_A_SNAPSHOT == 0:
            self._compact(added)
        return added

    def _has(self, log: SourceLog, names: Mapping[str, Sequence[int]]) -> bool:
        """True where the last entry of a log is in the folder, and of that log."""
        kind = next((one for one in ("s", "e") if log.number in names[one]), None)
        if not log.number or kind is None:
            return not log.number
        try:
            about = self._table(_name(kind, log.number)).schema.metadata
        except FileNotFoundError:  # a snapshot has replaced it meanwhile
            return self._has(log, self._names())
        return about.get(b"log") == log.log_id.encode()

    def _compact(self, log: SourceLog) -> None:
        """Write a snapshot of all entries, and remove what it replaces."""
        before = self._names()
        if not self.storage.create(_name("s", log.number), self._bytes(log.events, log.log_id)):
            return
        for kind in ("e", "s"):
            for number in before[kind]:
                if number <= log.number:
                    self.storage.delete(_name(kind, number))

    def _names(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {"e": [], "s": []}
        for one in self.storage.names():
            match = _NAME.fullmatch(one)
            if match:
                found[match["kind"]].append(int(match["number"]))
        return found

    def _table(self, name: str) -> Table:
        data = self.storage.read(name)
        try:
            table = read_parquet(data, batch_size=_BATCH_ROWS).read_all()
        except BaseException as error:
            # Arro3 panics at a footer that it cannot read, and a panic is not an Exception.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise self._error(f"{name} cannot be read ({error})") from None
        if table.schema.metadata.get(b"version") != _VERSION.encode() or table.column_names != EVENTS.names:
            raise self._error(f"{name} is of another release")
        return table

    def _bytes(self, table: Table, log_id: str) -> bytes:
        about = {"log": log_id, "version": _VERSION, "source": self.source, "target": self.target}
        out = io.BytesIO()
        write_parquet(table.with_schema(EVENTS.with_metadata(about)), out, compression="zstd(1)")
        return out.getvalue()

    def _unusable(self, how: str, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"the log of source path {self.source!r} cannot be {how} in {self.storage.root!r} ({error}): "
            "name a folder that can be written in the source's log_path. Nothing was sent"
        )

    def _error(self, what: str) -> SourcePositionError:
        return SourcePositionError(
            f"the log of source path {self.source!r} in {self.storage.root!r} is damaged ({what}): bring the "
            "folder back as it was. Nothing was sent"
        )


def _name(kind: str, number: int) -> str:
    return f"{kind}{number:012}.parquet"


def _joined(tables: Sequence[Table]) -> Table:
    return Table.from_batches([batch for one in tables for batch in one.to_batches()], schema=EVENTS)
