"""What PUT and GET ask a client to do: which of its files go where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transfer:
    """One PUT or GET, resolved.

    :param is_upload: PUT.
    :param identity: folder of the stage.
    :param prefix: path below it: where PUT stores files (empty or ending with ``/``), or what GET may read.
    :param sources: PUT: the client's path or pattern; GET: paths of the files below the stage.
    :param local_folder: GET: the client's folder.
    :param parallel: number of files that the client moves at a time.
    :param auto_compress: PUT: compress what is not compressed.
    :param source_compression: PUT: AUTO_DETECT or the name of a compression.
    :param overwrite: PUT: replace a file that exists.
    :param threshold: PUT: bytes from which a client may send a file in parts; None for its own rule.
    """

    is_upload: bool
    identity: str
    prefix: str
    sources: tuple[str, ...]
    local_folder: str = ""
    parallel: int = 4
    auto_compress: bool = True
    source_compression: str = "AUTO_DETECT"
    overwrite: bool = False
    threshold: int | None = None
