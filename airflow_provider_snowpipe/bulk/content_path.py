"""Paths in a stage that name what a file holds, so that a changed file is never taken for the one before.

COPY knows a file again by path and ETag, and a file that is uploaded a second time may have another ETag for
the same content (files are encrypted on their way). A path that holds a digest of the content is uploaded
once, and a load of it in load history is a load of this very content.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

from airflow_provider_snowpipe.bulk.file_load import LOADED, PARTIALLY_LOADED, FileLoad
from airflow_provider_snowpipe.streaming.errors import SourcePositionError

_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]")
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ContentPath:
    """A file's place in a stage.

    :param folder: of its channel
    :param digest: of channel, name and content
    :param name: the file's own name, in letters that need no quotes
    """

    folder: str
    digest: str
    name: str

    @classmethod
    def of(cls, channel: str, name: str, file: Path, size: int) -> ContentPath:
        """Find the place of a file by what it holds.

        :param channel: the channel of its partition
        :param name: its name in the partition
        :param file: where it is
        :param size: bytes of it that count
        :raises SourcePositionError: if it has fewer
        """
        digest = blake2b(f"{channel}\0{name}\0".encode(), digest_size=12)
        left = size
        with file.open("rb") as stream:
            while left and (data := stream.read(min(left, _READ_BYTES))):
                digest.update(data)
                left -= len(data)
        if left:
            raise SourcePositionError(
                f"file {str(file)!r} shrank by {left:,} bytes while it was read: run again when nothing "
                "changes it"
            )
        return cls(_UNSAFE.sub("_", channel), digest.hexdigest(), _UNSAFE.sub("_", name))

    @property
    def path(self) -> str:
        """The whole path."""
        return f"{self.folder}/{self.digest}/{self.name}"


def loaded_contents(paths: Sequence[ContentPath], history: Iterable[FileLoad]) -> dict[str, FileLoad]:
    """The loads of these contents, by their paths.

    :param paths: the files
    :param history: loads from the oldest, of whichever loader counts
    :raises SourcePositionError: if another content of one of the files was loaded
    """
    expected = {(one.folder, one.digest, one.name): one.path for one in paths}
    names = {(one.folder, one.name) for one in paths}
    found: dict[str, FileLoad] = {}
    for load in history:
        place = staged_place(f"{load.location.rstrip('/')}/{load.path}")
        if load.status not in (LOADED, PARTIALLY_LOADED) or place is None:
            continue
        folder, digest, name = place
        path = expected.get((folder, digest, name))
        if path is not None:
            found[path] = replace(load, path=path)
        elif (folder, name) in names:
            raise SourcePositionError(
                f"file {name!r} of channel {folder!r} has changed: an interrupted load has loaded "
                f"{load.rows_loaded:,} rows of its former content"
                f"{f' at {load.loaded_at:%Y-%m-%d %H:%M:%S %Z}' if load.loaded_at else ''}. Bring that back, "
                "or remove these rows and reset the channel's offset token on purpose. Nothing was loaded"
            )
    return found


def staged_place(name: str) -> tuple[str, str, str] | None:
    """The folder, the digest and the name that the path of a staged file ends in, None for another path.

    :param name: the path, with whatever comes before
    """
    parts = name.split("/")[-3:]
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else None
