"""Files of stages in the form of Google's storage API, which JDBC speaks when it has a token.

JDBC lists the files that are there before PUT and GET, and skips them, only in this form: never with signed
URLs (observed with 3.24.2 and 4.4.1). It then uploads with metadata and file in one body.
"""

from __future__ import annotations

import base64
import re
import zlib
from typing import Any

from snowpipe_local.errors import Refusal
from snowpipe_local.fronts.http import Request, json_value
from snowpipe_local.stages.files import StagedFile

_BOUNDARY = re.compile(r'multipart/related;\s*boundary="?([\w\'()+,./:=?-]{1,70})"?')
_BETWEEN = b"\r\n\r\n"
_HEAD_BYTES = 64 << 10
INFLATED_BYTES = 256 << 20


def described(bucket: str, identity: str, file: StagedFile) -> dict[str, Any]:
    """Return the metadata of an object."""
    return {
        "kind": "storage#object",
        "bucket": bucket,
        "name": f"{identity}/{file.path}",
        "size": str(file.size),
        "md5Hash": base64.b64encode(bytes.fromhex(file.etag)).decode(),
    }


class Multipart:
    """The body of an upload, as it comes in: metadata and file, each in a part, all of it in gzip or not.

    :raises Refusal: 400 when they do not describe two parts.
    """

    def __init__(self, request: Request) -> None:
        found = _BOUNDARY.match(request.headers.get("content-type", ""))
        if found is None:
            raise _broken()
        self._end = b"\r\n--" + found[1].encode() + b"--"
        is_gzip = request.headers.get("content-encoding") == "gzip"
        self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16) if is_gzip else None
        self._held = b""
        self.name = ""

    def take(self, block: bytes, *, is_last: bool) -> bytes:
        """Return the next bytes of the file.

        :raises Refusal: 400 for a body that is not one of two parts.
        """
        self._held += block if self._inflater is None else self._inflated(self._inflater, block)
        if not self.name and not self._begin():
            if is_last or len(self._held) > _HEAD_BYTES:
                raise _broken()
            return b""
        # The end may come in two blocks, with an end of the line behind it.
        kept = self._held.rfind(self._end) if is_last else max(len(self._held) - len(self._end) - 2, 0)
        if kept < 0:
            raise _broken()
        taken, self._held = self._held[:kept], self._held[kept:]
        return taken

    @staticmethod
    def _inflated(inflater: Any, block: bytes) -> bytes:
        try:
            inflated = bytes(inflater.decompress(block, INFLATED_BYTES))
        except zlib.error as error:
            raise _broken() from error
        if inflater.unconsumed_tail:
            raise _broken(f"a block has more than {INFLATED_BYTES} bytes; use AUTO_COMPRESS = TRUE")
        return inflated

    def _begin(self) -> bool:
        """Read what stands before the file; False while it is not all there."""
        parts = self._held.split(_BETWEEN, 2)
        if len(parts) < 3:
            return False
        metadata = json_value(parts[1].partition(self._end[:-2])[0])
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if not isinstance(name, str) or not name:
            raise _broken("the metadata has no name")
        self.name, self._held = name, parts[2]
        return True


def _broken(why: str = "expected multipart/related with metadata and a file") -> Refusal:
    return Refusal(400, "INVALID_REQUEST_BODY", f"the upload cannot be read: {why}")
