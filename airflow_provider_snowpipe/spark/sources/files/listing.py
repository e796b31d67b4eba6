"""What a planner looks at: the listing of a source, the contents of its files, and where its log is."""

from __future__ import annotations

import io
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import cast

from airflow_provider_snowpipe.spark.source import Partition, SourceSecrets
from airflow_provider_snowpipe.spark.sources.files.formats import LineFileReader, may_grow, reader_of
from airflow_provider_snowpipe.spark.sources.files.log import SourceLog, Unit
from airflow_provider_snowpipe.spark.sources.files.log_plan import Contents, Found, ends_digest
from airflow_provider_snowpipe.spark.sources.files.log_store import LogStore
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource, Ndjson, SourceFile, values_of
from airflow_provider_snowpipe.spark.sources.files.storage import (
    LOG_FOLDER,
    Listed,
    LocalStorage,
    Storage,
    bucket_of,
    is_url,
    storage_of,
)
from airflow_provider_snowpipe.streaming.checkpoint import Binding
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    OffsetTokenError,
    SourceChangedError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.offsets import Offset, UnitOffset

log = logging.getLogger(__name__)

_MOST_BLANK_BYTES = 1 << 16


def found_files(spec: FileSource, storage: Storage) -> tuple[list[Found], set[str]]:
    """List the source's files as they are now, and the folders below that have source logs."""
    listed = {one.name: one for one in storage.files(spec.grouping.depth(spec.glob))}
    found = spec.grouping.groups(spec.path, sorted(listed), spec.glob)
    reached: dict[tuple[int, ...], str] = {}
    files = []
    for partition, names in sorted(found.items()):
        _check_partition(partition)
        for name, whole in names:
            _check_name(name, partition)
            _refuse_second_path(storage.path(whole), listed[whole], reached)
            one = listed[whole]
            files.append(
                Found(partition, name, whole, one.size, one.modified_ns, one.version, *one.node[1:2])
            )
    if not files:
        log.warning(
            "source path %r: no file matches %r with %r, so that there is nothing to load",
            spec.path,
            spec.glob,
            spec.grouping,
        )
    return files, {one.rpartition(f"/{LOG_FOLDER}/")[0] for one in listed if f"/{LOG_FOLDER}/" in one}


def _refuse_second_path(path: str, listed: Listed, reached: dict[tuple[int, ...], str]) -> None:
    """Refuse a file that a link leads to twice.

    Size and time distinguish files where a mounted storage gives all of them one number.
    """
    same = reached.setdefault(listed.node, path) if listed.node else path
    if listed.size and same != path:
        raise ConfigurationError(
            f"{same!r} and {path!r} are one file, which a link leads to twice: its rows would be loaded "
            "twice. Remove the link, make the pattern leave it out, or put a copy in its place if the rows "
            "are meant twice. Nothing was read or sent"
        )


def _check_name(name: str, partition: str) -> None:
    """Refuse a name that would not come back unchanged from an offset token."""
    try:
        token = str(UnitOffset(1, name, 1))
        token.encode("utf-8")
        survives = token.isprintable() and UnitOffset.parse(token).file == name
    except (OffsetTokenError, UnicodeEncodeError):
        survives = False
    if not survives:
        raise ConfigurationError(
            f"partition {partition!r}: the file name {name!r} cannot be part of an offset token: it is not "
            "printable UTF-8 text; rename the file"
        )


def _check_partition(partition: str) -> None:
    try:
        partition.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"partition {partition!r} is not UTF-8 text, as a channel's name has to be: rename the directory"
        ) from None


def binding_of(
    spec: FileSource, log_id: str, partition: str, lost: str = "", restarted: Collection[str] = ()
) -> Binding:
    """What positions in a partition of a source log mean.

    :param restarted: the ids of lost logs, whose files were to be loaded again
    """
    whose = f"{spec.owner} of the source log {log_id}, partition {partition!r}"
    before = frozenset(binding_of(spec, one, partition).source_digest for one in restarted)
    return Binding(whose, spec.form.numbering, lost, before)


def given_to_channels(
    log: SourceLog,
    spec: FileSource,
    partitions: Mapping[str, Partition],
    committed: Mapping[str, Offset | None],
    *,
    rebinds: bool,
) -> list[dict[str, object]]:
    """The events that give partitions to channels, where the log gives them to none or to others.

    Of two tasks that plan the same files at once, both with new channels, one creates the log's entry.
    """
    given = log.channels(spec.owner)
    rows: list[dict[str, object]] = []
    for channel, partition in partitions.items():
        holder = given.get(partition.name, channel)
        if holder != channel and committed[channel] is None and not rebinds:
            raise SourceChangedError(
                f"channel {channel!r} is new, and the source log gives partition {partition.name!r} to "
                f"channel {holder!r}: its rows would be loaded twice. Nothing was sent. Use channel_prefix "
                "and source_name of that channel; or set rebind='continue' or 'restart' where no other task "
                "loads it"
            )
        if given.get(partition.name) != channel:
            event = {"event": "channel", "number": 0, "owner": spec.owner}
            rows.append({**event, "partition": partition.name, "name": channel})
    return rows


def paths_above(path: str) -> list[str]:
    """The folders that a path is in, up to the bucket's URL or the file system's root."""
    if not is_url(path):
        return [str(one) for one in Path(path).parents]
    bucket = bucket_of(path)
    folders = path.removeprefix(bucket).split("/")
    return [bucket + "/".join(folders[:number]) for number in range(1, len(folders))]


def log_store(spec: FileSource, target: str, secrets: SourceSecrets, path: str | None = None) -> LogStore:
    """Where the log of a source is: below its path, or in a folder that several sources may share.

    :param target: the account and the pipe; each has a log of its own
    :param path: another path of the source, None for that of the spec
    """
    path = path or spec.address
    key = target
    if spec.log_path is None:
        parent = storage_of(path, secrets).below(LOG_FOLDER)
    else:
        parent = storage_of(spec.log_path, secrets if is_url(spec.log_path) else None)
        key = f"{key}\0{path}"
    folder = f"log-{blake2b(key.encode(), digest_size=8).hexdigest()}"
    return LogStore(parent.below(folder), path, target)


def refuse_replaced(file: SourceFile) -> None:
    """Refuse a local file whose ends are not those of its unit, since its rows may be those of both."""
    if file.ends and isinstance(file.storage, LocalStorage):
        with file.storage.open(file.path) as stream:
            if ends_of(stream, file.size) != file.ends:
                raise SourcePositionError(
                    f"file {file.path!r} was written again during the run, so that rows of both may have "
                    "been sent. Leave files in place until the run has ended, and compare the table with them"
                )


def ends_of(stream: io.BufferedIOBase, size: int) -> str:
    """Digest of the first and the last bytes of an open file up to a size."""

    def read(begin: int, end: int) -> bytes:
        stream.seek(begin)
        return stream.read(end - begin)

    return ends_digest(read, size)


@dataclass(frozen=True, slots=True)
class FileContents(Contents):
    """What the planner asks of the files of a source."""

    spec: FileSource
    storage: Storage

    @property
    def renames(self) -> bool:
        """As the storage does."""
        return self.storage.renames

    def ends(self, found: Found, size: int) -> str:
        """Digest of the ends of a local file; of an object only where it is said to grow."""
        if not (isinstance(self.storage, LocalStorage) or self.may_grow(found)):
            return ""
        with self.storage.open(self.storage.path(found.name)) as stream:
            return ends_of(stream, size)

    def may_grow(self, found: Found) -> bool:
        """True for text that is not compressed; for that of an object only where it is said to grow."""
        form = self.spec.form
        is_asked = form.growing or isinstance(self.storage, LocalStorage)
        return is_asked and may_grow(self._file(found, found.size), form)

    def whole(self, found: Found, start: int, after_line: int, *, is_last: bool) -> int:
        """Where the last whole line of a growing file ends; any other file is whole."""
        if not (is_last and self.spec.form.growing and self.may_grow(found)):
            return found.size
        return self._lines().whole_end(self._file(found, found.size, start, after_line))

    def goes_on(self, found: Found, unit: Unit) -> tuple[int, int] | None:
        """Count the lines of the unit, and find where the next one begins."""
        with self.storage.open(self.storage.path(found.name)) as stream:
            stream.seek(unit.end - 1)
            around = stream.read(3)
        start = unit.end
        if around[:1] != b"\n":
            if around[1:3] == b"\r\n":
                start += 2
            elif around[1:2] == b"\n":
                start += 1
            else:
                return None
        file = self._file(found, unit.end, unit.start, unit.after_line)
        lines, end = self._lines().extent(file, keep_tail=False)
        if around[:1] != b"\n":
            return start, unit.after_line + lines + 1
        # A record of CSV may go on behind a newline.
        is_whole = end == unit.end or self.is_blank(found, end, unit.end)
        return (start, unit.after_line + lines) if is_whole else None

    def is_blank(self, found: Found, start: int, end: int) -> bool:
        """Read a short piece."""
        if end - start > _MOST_BLANK_BYTES:
            return False
        with self.storage.open(self.storage.path(found.name)) as stream:
            stream.seek(start)
            blanks = b" \t\r\n" if isinstance(self.spec.form, Ndjson) else b"\r\n"
            return not stream.read(end - start).strip(blanks)

    def _lines(self) -> LineFileReader:
        return cast(LineFileReader, reader_of(self.spec.form))

    def _file(self, found: Found, size: int, start: int = 0, after_line: int = 0) -> SourceFile:
        path = self.storage.path(found.name)
        values = values_of(self.spec, found.name)
        return SourceFile(
            found.file, path, size, values, storage=self.storage, start=start, after_line=after_line
        )
