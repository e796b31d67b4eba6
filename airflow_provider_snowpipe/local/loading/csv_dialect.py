"""How a CSV file is written: the bytes of its delimiters, quotes and escapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Stands for RECORD_DELIMITER = NONE: it is not in the file, and the end of the file counts as one.
NO_DELIMITER = b"\x00\x1e\x00\x1e"


@dataclass(frozen=True, slots=True)
class CsvDialect:
    r"""Delimiters and quoting of one file format.

    :param field: field delimiter; empty for none.
    :param record: record delimiter; ``\n`` also ends at ``\r\n``.
    :param quote: one byte that may enclose fields; empty for none.
    :param escape: escape inside enclosed fields; empty for none.
    :param bare_escape: escape inside fields that are not enclosed; empty for none.
    :param nulls: texts that stand for NULL.
    :param empty_is_null: an empty field that is not enclosed is NULL.
    :param trim: blanks around fields are removed.
    :param skip_blank: empty lines are no records.
    """

    field: bytes = b","
    record: bytes = b"\n"
    quote: bytes = b""
    escape: bytes = b""
    bare_escape: bytes = b"\\"
    nulls: tuple[bytes, ...] = (b"\\N",)
    empty_is_null: bool = True
    trim: bool = False
    skip_blank: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> CsvDialect:
        """Build a dialect from the options of a file format (documentation page "CREATE FILE FORMAT")."""
        return cls(
            field=_bytes(options.get("FIELD_DELIMITER", ",")),
            record=_bytes(options.get("RECORD_DELIMITER", "\n")).replace(b"\r\n", b"\n") or NO_DELIMITER,
            quote=_bytes(options.get("FIELD_OPTIONALLY_ENCLOSED_BY", "NONE")),
            escape=_bytes(options.get("ESCAPE", "NONE")),
            bare_escape=_bytes(options.get("ESCAPE_UNENCLOSED_FIELD", "\\")),
            nulls=tuple(_bytes(text, none=False) for text in options.get("NULL_IF", ("\\N",))),
            empty_is_null=bool(options.get("EMPTY_FIELD_AS_NULL", True)),
            trim=bool(options.get("TRIM_SPACE", False)),
            skip_blank=bool(options.get("SKIP_BLANK_LINES", False)),
        )


def _bytes(value: Any, *, none: bool = True) -> bytes:
    if value is None or (none and str(value).upper() == "NONE"):
        return b""
    return str(value).encode()
