"""Late files: what changed before the committed position, which no offset token can show.

A token names the last row that is in the table. That everything before it is in, too, is true of the files as
they were listed when those rows were sent, and of no other. So each run keeps its listing, with sizes and
times, and the next one compares. A channel's listing is kept before anything is sent: whatever the token has
come to later was sent under a listing that was kept, however the run ended.

File times alone, held against the time of the last commit, would need no listing, but show less and show it
wrongly: the service does not report when it committed, a file that is moved keeps its time, and files of one
delivery are written in any order.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4

from airflow_provider_snowpipe.spark.sources.files.formats import may_grow
from airflow_provider_snowpipe.spark.sources.files.spec import (
    LISTING_FOLDER,
    FileGroup,
    FileSourceSpec,
    SourceFile,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset

log = logging.getLogger(__name__)

_VERSION = 2
_MOST_NAMED = 10
_END_BYTES = 4096
_LISTING_ATTEMPTS = 10
_KEPT_AT_ONCE = 32
"""Each waits for the disk, which takes many at once in the time of one."""
_REMEDY = (
    "Files are read in the order of their names, so that their rows would never be read. Nothing was sent. "
    "Move the rows that are missing to a file that sorts after the others, or bring the files back as they "
    "were; where nothing is missing, run once with the source's on_late_files='warn', which takes the files "
    "as they are from then on"
)


@dataclass(frozen=True, slots=True)
class ListedBefore:
    """A channel's files as an earlier run listed them.

    :param at: when, as text
    :param files: size in bytes and time of the last change in nanoseconds, by name
    :param ends: digest of the first and the last bytes of a file to which rows may be added, by name
    """

    at: str
    files: Mapping[str, tuple[int, int]]
    ends: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PassedFiles:
    """A channel's files, and the position that they are held against.

    :param group: its files as they are now
    :param committed: its committed position, None for NULL
    """

    channel: str
    group: FileGroup
    committed: FileLineOffset | None

    def late(
        self, before: ListedBefore, *, change_of_committed: Callable[[SourceFile, ListedBefore], str | None]
    ) -> list[str]:
        """Describe the files up to the committed one that have changed since they were listed.

        A file that was emptied has nothing to read; one that grew older was put back.

        :param change_of_committed: describes what the token does not show of the committed file
        """
        if self.committed is None:
            return []
        found = []
        for file in self.group.files:
            if file.name > self.committed.file or (
                file.name == self.committed.file and not self.committed.line
            ):
                break
            if file.name == self.committed.file:
                changed = change_of_committed(file, before)
            else:
                changed = _change(file, before.files.get(file.name))
            if file.size and changed:
                found.append(f"{file.name!r} ({changed}, written {_text_of_time(file.modified_ns)})")
        return found


@dataclass(frozen=True, slots=True)
class _ListingFile:
    """A kept file.

    :param number: above those of the files that its run found
    """

    path: Path
    number: int
    channels: Mapping[str, ListedBefore]


class Listings:
    """Where the listings of a source's channels are kept: in files of up to 256 groups of channels.

    A file of its own for each channel would cost ten thousand partitions as many files at each run. A run
    writes one for each group of which it changes a channel, under a number above those that are there, and
    removes the earlier ones whose channels are all in later ones: so two runs never write one file, and there
    are never more files than channels.

    :param target: the account's address and the pipe, in which the channels' names are unique
    """

    def __init__(self, spec: FileSourceSpec, target: str) -> None:
        self._spec = spec
        self._target = target
        self._folder = Path(spec.listing_path or Path(spec.path) / LISTING_FOLDER)
        self._prefix = blake2b(target.encode(), digest_size=8).hexdigest()

    def check(self, passed: Iterable[PassedFiles]) -> None:
        """Refuse late files, or warn of them; then keep the present listing as the known one.

        :param passed: the channels, whose committed tokens are known
        :raises SourcePositionError: if there are late files, unless the source has ``warn``; names them
        :raises ConfigurationError: if a listing cannot be read or kept
        """
        fails = self._spec.on_late_files == "fail"
        groups: dict[str, list[PassedFiles]] = {}
        for one in passed:
            groups.setdefault(_group_of(one.channel), []).append(one)
        kept = self._kept(groups)
        changed: dict[str, list[PassedFiles]] = {}
        for group, channels in groups.items():
            known = {channel: one for file in kept.get(group, ()) for channel, one in file.channels.items()}
            for one in channels:
                before = known.get(one.channel)
                late = (
                    [] if before is None else one.late(before, change_of_committed=self._change_of_committed)
                )
                if before is not None and late:
                    message = _message(one, before, late)
                    if fails:
                        raise SourcePositionError(f"{message}. {_REMEDY}")
                    log.warning("%s. They are left out, as on_late_files sets, and not named again", message)
                if before is None or before.files != _sizes_and_times(one.group):
                    changed.setdefault(group, []).append(one)
        try:
            with ThreadPoolExecutor(_KEPT_AT_ONCE) as pool:
                before_it = [kept.get(group, []) for group in changed]
                for _ in pool.map(self._keep, changed, changed.values(), before_it):
                    pass
        except OSError as error:
            reason = (
                f"the listing of source path {self._spec.path!r} cannot be kept in {str(self._folder)!r} "
                f"({error.strerror}), so that the next run would not notice files that change before the "
                "committed position: name a directory that can be written in the source's listing_path"
            )
            # A source that may only be read has always been one; who names a directory relies on it.
            if fails and self._spec.listing_path:
                raise ConfigurationError(f"{reason}, or do without by on_late_files='warn'") from None
            log.warning("%s", reason)

    def _change_of_committed(self, file: SourceFile, before: ListedBefore) -> str | None:
        known = before.files.get(file.name)
        if known is None or self._spec.verify == "digest":  # whose token shows the content
            return None
        if not may_grow(file, self._spec.form):
            return _change(file, known)
        size, modified_ns = known
        ends = before.ends.get(file.name)
        if file.modified_ns != modified_ns and ends is not None and ends != _ends(file.path, size):
            return f"overwritten, {size} bytes before and {file.size} now"
        return None

    def _ends_of_last(self, group: FileGroup) -> dict[str, str]:
        """Those of the file that will be the committed one; none where its time or token suffices."""
        file = group.files[-1]
        if self._spec.verify == "digest" or not may_grow(file, self._spec.form):
            return {}
        ends = _ends(file.path, file.size)
        return {} if ends is None else {file.name: ends}

    def _kept(self, groups: Iterable[str]) -> dict[str, list[_ListingFile]]:
        """The files of some groups of channels, the latest last."""
        chosen = frozenset(groups)
        for _ in range(_LISTING_ATTEMPTS):
            found: dict[str, list[_ListingFile]] = {}
            for name in self._names():
                group, number, _ = name.removeprefix(f"{self._prefix}-").split("-", 2)
                if group not in chosen:
                    continue
                content = self._read(self._folder / name)
                # Another run has removed it, since a file that was not there yet holds its channels.
                if content is None:
                    break
                found.setdefault(group, []).append(_ListingFile(self._folder / name, int(number), content))
            else:
                return found
        raise ConfigurationError(
            f"source path {self._spec.path!r}: the listings of earlier runs in {str(self._folder)!r} change "
            "while they are read: other runs load from it at this time. Run again. Nothing was sent"
        )

    def _names(self) -> list[str]:
        try:
            names = os.listdir(self._folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise ConfigurationError(
                f"source path {self._spec.path!r}: the listings of earlier runs in {str(self._folder)!r} "
                f"cannot be read ({error.strerror}). Allow to read that directory. Nothing was sent"
            ) from None
        return sorted(one for one in names if one.startswith(f"{self._prefix}-") and one.endswith(".json"))

    def _read(self, path: Path) -> dict[str, ListedBefore] | None:
        """The listings in a file by channel, None where there is no such file."""
        try:
            content: Any = json.loads(path.read_bytes())
            if content["version"] != _VERSION:
                raise ValueError(f"version {content['version']!r}")
            at, ends = str(content["listed_at"]), content["ends"]
            return {
                str(channel): ListedBefore(
                    at,
                    {str(name): (int(size), int(time)) for name, (size, time) in files.items()},
                    dict(ends.get(channel, {})),
                )
                for channel, files in content["channels"].items()
            }
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"source path {self._spec.path!r}: the listing of an earlier run in {str(path)!r} cannot be "
                f"read ({error}). Remove that file if nothing has changed before the committed position "
                "since the last run. Nothing was sent"
            ) from None

    def _keep(self, group: str, changed: Sequence[PassedFiles], before: Sequence[_ListingFile]) -> None:
        channels = {one.channel: _sizes_and_times(one.group) for one in changed}
        content = {
            "version": _VERSION,
            "target": self._target,
            "listed_at": f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M:%S} UTC",
            "channels": channels,
            "ends": {one.channel: ends for one in changed if (ends := self._ends_of_last(one.group))},
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        number = before[-1].number + 1 if before else 1
        path = self._folder / f"{self._prefix}-{group}-{number:012}-{uuid4().hex[:8]}.json"
        written = path.with_suffix(".part")
        with written.open("w", encoding="utf-8") as out:
            json.dump(content, out)
            out.flush()
            os.fsync(out.fileno())
        written.replace(path)
        later = set(channels)
        for file in reversed(before):
            if file.channels.keys() <= later:
                file.path.unlink(missing_ok=True)
            later |= file.channels.keys()


def _group_of(channel: str) -> str:
    return blake2b(channel.encode(), digest_size=1).hexdigest()


def _sizes_and_times(group: FileGroup) -> dict[str, tuple[int, int]]:
    return {file.name: (file.size, file.modified_ns) for file in group.files}


def _ends(path: str, size: int) -> str | None:
    """Digest of the first and the last bytes up to a size, which stay the same when rows are added.

    :return: None where it cannot be read, which whoever reads its rows reports
    """
    try:
        with open(path, "rb") as stream:
            found = blake2b(stream.read(min(size, _END_BYTES)), digest_size=8)
            stream.seek(max(0, size - _END_BYTES))
            found.update(stream.read(min(size, _END_BYTES)))
    except OSError:
        return None
    return found.hexdigest()


def _change(file: SourceFile, before: tuple[int, int] | None) -> str | None:
    if before is None:
        return f"new, {file.size} bytes"
    size, modified_ns = before
    if file.size > size:
        return f"grew from {size} to {file.size} bytes"
    if file.modified_ns > modified_ns:
        return f"changed, {size} bytes before and {file.size} now"
    return None


def _message(passed: PassedFiles, before: ListedBefore, late: list[str]) -> str:
    more = f" and {len(late) - _MOST_NAMED} more" if len(late) > _MOST_NAMED else ""
    return (
        f"channel {passed.channel!r}: {str(passed.committed)!r} is committed, and {len(late)} file(s) of "
        f"partition {passed.group.partition!r} up to that one have changed since they were listed at "
        f"{before.at}: {', '.join(late[:_MOST_NAMED])}{more}"
    )


def _text_of_time(nanoseconds: int) -> str:
    timestamp = dt.datetime.fromtimestamp(nanoseconds // 1_000_000_000, dt.UTC)
    return f"{timestamp:%Y-%m-%d %H:%M:%S} UTC"
