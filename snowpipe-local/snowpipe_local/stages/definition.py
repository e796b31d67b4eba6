"""What CREATE STAGE and CREATE FILE FORMAT define: values of options, format options, definitions."""

from __future__ import annotations

import dataclasses
import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeAlias

from snowpipe_local.errors import SqlError, compilation_error, unsupported
from snowpipe_local.names import Rename

# -- Values of the options of stages, file formats and COPY, and the errors for wrong ones ---------------


class Word(str):
    """A value that was written without quotes: a keyword, or the name of an object."""

    __slots__ = ()


Setting: TypeAlias = "str | Word | int | bool | tuple[Setting, ...] | Mapping[str, Setting]"

_STRING = re.compile(r"'((?:[^'\\]|\\.|'')*)'", re.DOTALL)
_DOLLARS = re.compile(r"\$\$(.*?)\$\$", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[0-7]{1,3}|.)|''", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}


def read_literal(text: str) -> tuple[str, str]:
    """Read a string literal from the start of a text.

    :returns: its value with escapes undone, and the rest of the text.
    :raises SqlError: when the text does not start with a literal.
    """
    stripped = text.lstrip()
    for pattern in (_STRING, _DOLLARS):
        match = pattern.match(stripped)
        if match is not None:
            value = unescape(match[1]) if pattern is _STRING else match[1]
            return value, stripped[match.end() :].strip()
    raise compilation_error(f"syntax error: expected a string at '{stripped[:20]}'.")


def unescape(text: str) -> str:
    r"""Undo the escapes of a string literal: ``''``, ``\n``, ``\t``, ``\\``, octal, ``\x`` and ``\u``."""
    return _ESCAPE.sub(_unescaped, text)


def invalid_parameter(name: str) -> SqlError:
    """Return Snowflake's error for an option that a statement does not know (001420)."""
    return SqlError("001420", "22023", f"SQL compilation error:\ninvalid parameter '{name}'")


def invalid_value(name: str, value: object, allowed: str) -> SqlError:
    """Return Snowflake's error for a value that an option does not take (001008)."""
    why = f"SQL compilation error:\ninvalid value [{value}] for parameter '{name}'; it takes {allowed}."
    return SqlError("001008", "22023", why)


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if code is None:
        return "'"
    if code[0] in "ux" and len(code) > 1:
        # Half of a surrogate pair is not a character.
        return chr(int(code[1:], 16)).encode("utf-8", "replace").decode()
    if code in _ESCAPED:
        return _ESCAPED[code]
    return chr(int(code, 8)) if code[0] in "01234567" else code


ReadsValue: TypeAlias = Callable[[str, Setting], Any]
"""What reads the value of an option, by its name, or raises 001008."""


def read_options(settings: Mapping[str, Setting], known: Mapping[str, ReadsValue]) -> dict[str, Any]:
    """Return the values of the options of a statement.

    :raises SqlError: 001420 for another option, 001008 for a wrong value.
    """
    for name in settings:
        if name not in known:
            raise invalid_parameter(name)
    return {name: known[name](name, value) for name, value in settings.items()}


def as_written(_name: str, value: Setting) -> Setting:
    """Read any value."""
    return value


def boolean(name: str, value: Setting) -> bool:
    """Read TRUE or FALSE."""
    if not isinstance(value, bool):
        raise invalid_value(name, value, "TRUE or FALSE")
    return value


def string(name: str, value: Setting) -> str:
    """Read a string or a name."""
    if not isinstance(value, str):
        raise invalid_value(name, value, "a string or a name")
    return str(value)


def number(least: int, most: int) -> ReadsValue:
    """Return what reads a whole number in a range."""

    def read(name: str, value: Setting) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise invalid_value(name, value, f"a number from {least} to {most}")
        return value

    return read


def one_of(*words: str) -> ReadsValue:
    """Return what reads one of some words, in any case."""

    def read(name: str, value: Setting) -> str:
        if isinstance(value, str) and value.upper() in words:
            return value.upper()
        raise invalid_value(name, value, ", ".join(words))

    return read


# -- File formats: the options of each type, their defaults, and which values they take ------------------

OptionValue: TypeAlias = str | int | bool | tuple[str, ...] | None

_COMPRESSIONS = ("AUTO", "GZIP", "BZ2", "BROTLI", "ZSTD", "DEFLATE", "RAW_DEFLATE", "NONE")
_HEX = re.compile(r"(?:0x|\\x)((?:[0-9A-Fa-f]{2})+)", re.IGNORECASE)
_MOST_DELIMITER_CHARACTERS = 20
# Snowflake's names of character sets, without - and _, and Python's; None for what Python does not have.
_CODECS: dict[str, str | None] = {
    "BIG5": "big5", "EUCJP": "euc_jp", "EUCKR": "euc_kr", "GB18030": "gb18030", "IBM420": None,
    "IBM424": "cp424", "IBM949": "cp949", "ISO2022CN": None, "ISO2022JP": "iso2022_jp",
    "ISO2022KR": "iso2022_kr", "KOI8R": "koi8_r", "SHIFTJIS": "shift_jis", "UTF8": "utf-8",
    "WINDOWS874": "cp874", "WINDOWS949": "cp949",
    **{f"ISO8859{part}": f"iso8859-{part}" for part in (1, 2, 5, 6, 7, 8, 9, 15)},
    **{f"UTF{size}{order}": f"utf-{size}{order and '-'}{order}" for size in (16, 32)
       for order in ("", "BE", "LE")},
    **{f"WINDOWS125{last}": f"cp125{last}" for last in range(7)},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Option:
    default: OptionValue
    read: Callable[[str, Setting], OptionValue]


def _boolean(name: str, value: Setting) -> OptionValue:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.upper() in {"TRUE", "FALSE"}:
        return value.upper() == "TRUE"
    raise invalid_value(name, value, "TRUE or FALSE")


def _count(name: str, value: Setting) -> OptionValue:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise invalid_value(name, value, "a number of lines, 0 or more")


def _text(name: str, value: Setting) -> OptionValue:
    if not isinstance(value, str):
        raise invalid_value(name, value, "a string")
    return None if value.upper() == "NONE" else str(value)


def _pattern(name: str, value: Setting) -> OptionValue:
    if not isinstance(value, str) or not value:
        raise invalid_value(name, value, "a format, or AUTO")
    return "AUTO" if value.upper() == "AUTO" else str(value)


def _delimiter(name: str, value: Setting) -> OptionValue:
    if not isinstance(value, str):
        raise invalid_value(name, value, "a string, or NONE")
    if value.upper() == "NONE" or not value:
        return None
    decoded = _HEX.sub(lambda found: bytes.fromhex(found[1]).decode("latin-1"), value)
    if decoded == value and len(value) > 1:
        decoded = unescape(decoded)
    if len(decoded) > _MOST_DELIMITER_CHARACTERS:
        raise invalid_value(name, value, f"{_MOST_DELIMITER_CHARACTERS} characters at most")
    try:
        # A character of several bytes is written by their hexadecimal values.
        return decoded.encode("latin-1").decode()
    except UnicodeError:
        return decoded


def _character(name: str, value: Setting) -> OptionValue:
    decoded = _delimiter(name, value)
    if decoded is not None and not (len(str(decoded)) == 1 and str(decoded).isascii()):
        raise invalid_value(name, value, "one character of a single byte, or NONE")
    return decoded


def _quote(name: str, value: Setting) -> OptionValue:
    decoded = _delimiter(name, value)
    if decoded not in {None, "'", '"'}:
        raise invalid_value(name, value, "a single or double quote, or NONE")
    return decoded


def _strings(name: str, value: Setting) -> OptionValue:
    values = value if isinstance(value, tuple) else () if value == {} else (value,)
    if not all(isinstance(entry, str) for entry in values):
        raise invalid_value(name, value, "a list of strings")
    return tuple(str(entry) for entry in values)


def _encoding(name: str, value: Setting) -> OptionValue:
    folded = _folded(str(value))
    if folded not in _CODECS:
        raise invalid_value(name, value, "the name of a character set")
    if _CODECS[folded] is None:
        raise unsupported(f"ENCODING = {folded}")
    return folded


def codec_of(encoding: str) -> str:
    """Return the name that Python has for a value of ENCODING."""
    return str(_CODECS[_folded(encoding)])


def _folded(encoding: str) -> str:
    return encoding.upper().replace("-", "").replace("_", "")


def _off(name: str, value: Setting) -> OptionValue:
    if _boolean(name, value):
        raise unsupported(f"{name} = TRUE")
    return False


def _each(default: OptionValue, read: ReadsValue, names: str) -> dict[str, _Option]:
    return dict.fromkeys(names.split(), _Option(default, read))


# Every option with its default, which two types have otherwise.
_KNOWN: dict[str, _Option] = {
    **_each("AUTO", one_of(*_COMPRESSIONS), "COMPRESSION"),
    **_each("HEX", one_of("HEX", "BASE64", "UTF8", "UTF-8"), "BINARY_FORMAT"),
    **_each("AUTO", _pattern, "DATE_FORMAT TIME_FORMAT TIMESTAMP_FORMAT"),
    **_each("\n", _delimiter, "RECORD_DELIMITER"),
    **_each(",", _delimiter, "FIELD_DELIMITER"),
    **_each(None, _text, "FILE_EXTENSION"),
    **_each(0, _count, "SKIP_HEADER"),
    **_each(None, _character, "ESCAPE"),
    **_each("\\", _character, "ESCAPE_UNENCLOSED_FIELD"),
    **_each(None, _quote, "FIELD_OPTIONALLY_ENCLOSED_BY"),
    **_each((), _strings, "NULL_IF"),
    **_each("UTF8", _encoding, "ENCODING"),
    **_each(False, _off, "ENABLE_OCTAL"),
    **_each(
        False,
        _boolean,
        "PARSE_HEADER SKIP_BLANK_LINES TRIM_SPACE REPLACE_INVALID_CHARACTERS ALLOW_DUPLICATE "
        "STRIP_OUTER_ARRAY STRIP_NULL_VALUES IGNORE_UTF8_ERRORS USE_LOGICAL_TYPE USE_VECTORIZED_SCANNER "
        "PRESERVE_SPACE STRIP_OUTER_ELEMENT DISABLE_SNOWFLAKE_DATA DISABLE_AUTO_CONVERT",
    ),
    **_each(
        True,
        _boolean,
        "ERROR_ON_COLUMN_COUNT_MISMATCH VALIDATE_UTF8 EMPTY_FIELD_AS_NULL SKIP_BYTE_ORDER_MARK MULTI_LINE "
        "SNAPPY_COMPRESSION BINARY_AS_TEXT",
    ),
}
# The options of each type, in the order in which DESCRIBE shows them.
_OPTIONS = {
    kind: {name: _KNOWN[name] for name in names.split()}
    for kind, names in {
        "CSV": "COMPRESSION RECORD_DELIMITER FIELD_DELIMITER FILE_EXTENSION PARSE_HEADER SKIP_HEADER "
        "SKIP_BLANK_LINES DATE_FORMAT TIME_FORMAT TIMESTAMP_FORMAT BINARY_FORMAT ESCAPE "
        "ESCAPE_UNENCLOSED_FIELD TRIM_SPACE FIELD_OPTIONALLY_ENCLOSED_BY NULL_IF "
        "ERROR_ON_COLUMN_COUNT_MISMATCH VALIDATE_UTF8 REPLACE_INVALID_CHARACTERS EMPTY_FIELD_AS_NULL "
        "SKIP_BYTE_ORDER_MARK ENCODING MULTI_LINE",
        "JSON": "COMPRESSION DATE_FORMAT TIME_FORMAT TIMESTAMP_FORMAT BINARY_FORMAT TRIM_SPACE MULTI_LINE "
        "NULL_IF FILE_EXTENSION ENABLE_OCTAL ALLOW_DUPLICATE STRIP_OUTER_ARRAY STRIP_NULL_VALUES "
        "REPLACE_INVALID_CHARACTERS IGNORE_UTF8_ERRORS SKIP_BYTE_ORDER_MARK",
        "PARQUET": "COMPRESSION SNAPPY_COMPRESSION BINARY_AS_TEXT USE_LOGICAL_TYPE USE_VECTORIZED_SCANNER "
        "TRIM_SPACE REPLACE_INVALID_CHARACTERS NULL_IF",
        "AVRO": "COMPRESSION TRIM_SPACE REPLACE_INVALID_CHARACTERS NULL_IF",
        "ORC": "TRIM_SPACE REPLACE_INVALID_CHARACTERS NULL_IF",
        "XML": "COMPRESSION IGNORE_UTF8_ERRORS PRESERVE_SPACE STRIP_OUTER_ELEMENT DISABLE_SNOWFLAKE_DATA "
        "DISABLE_AUTO_CONVERT REPLACE_INVALID_CHARACTERS SKIP_BYTE_ORDER_MARK",
    }.items()
}
_OPTIONS["CSV"]["NULL_IF"] = _Option(("\\N",), _strings)
_OPTIONS["PARQUET"]["COMPRESSION"] = _Option("AUTO", one_of(*_COMPRESSIONS, "LZO", "SNAPPY"))
TYPES = tuple(_OPTIONS)


@dataclass(frozen=True, slots=True)
class FileFormat(Mapping[str, OptionValue]):
    """How to read a file: its type, and a value for every option that the type has.

    As a mapping it holds every option under its upper-case name, without TYPE; options that nobody set have
    Snowflake's default (CREATE FILE FORMAT, "Format type options").

    :param type: ``CSV``, ``JSON``, ``PARQUET``, ``AVRO``, ``ORC`` or ``XML``.
    """

    type: str = "CSV"
    chosen: Mapping[str, OptionValue] = field(default_factory=lambda: MappingProxyType({}))

    def __getitem__(self, name: str) -> OptionValue:
        """Return the value of an option, set or default."""
        return self.chosen[name] if name in self.chosen else _OPTIONS[self.type][name].default

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of all options of the type."""
        return iter(_OPTIONS[self.type])

    def __len__(self) -> int:
        """Count the options of the type."""
        return len(_OPTIONS[self.type])

    def text(self, name: str) -> str | None:
        """Return an option that is a string or not set."""
        value = self[name]
        return None if value is None else str(value)

    def default(self, name: str) -> OptionValue:
        """Return Snowflake's default of an option."""
        return _OPTIONS[self.type][name].default

    def settings(self) -> dict[str, OptionValue]:
        """Return TYPE and the options that were set."""
        return {"TYPE": self.type, **self.chosen}


def read_file_format(settings: Mapping[str, Setting], *inherited: Mapping[str, OptionValue]) -> FileFormat:
    """Build a file format from the options of a statement and those that they complete.

    :param settings: option to value as the statement wrote them, with or without TYPE; no FORMAT_NAME.
    :param inherited: :meth:`FileFormat.settings` of weaker levels, the strongest first; one of another TYPE
        does not count.
    :raises SqlError: for an unknown type, an option that the type does not have, or a wrong value.
    """
    if "TYPE" in settings:
        kind = _type(settings["TYPE"])
    else:
        kind = next((str(layer["TYPE"]) for layer in inherited if "TYPE" in layer), "CSV")
    known = {name: option.read for name, option in _OPTIONS[kind].items()}
    chosen = read_options({name: value for name, value in settings.items() if name != "TYPE"}, known)
    for layer in inherited:
        if layer.get("TYPE") == kind:
            chosen = {**{name: value for name, value in layer.items() if name != "TYPE"}, **chosen}
    if kind == "CSV" and chosen.get("PARSE_HEADER") and chosen.get("SKIP_HEADER"):
        raise invalid_value("SKIP_HEADER", chosen["SKIP_HEADER"], "0 together with PARSE_HEADER = TRUE")
    made = FileFormat(kind, MappingProxyType(chosen))
    if kind == "CSV":
        _check_delimiters(made)
    return made


def _check_delimiters(made: FileFormat) -> None:
    field_delimiter, record = made.text("FIELD_DELIMITER"), made.text("RECORD_DELIMITER")
    if field_delimiter and record and (field_delimiter in record or record in field_delimiter):
        raise invalid_value(
            "FIELD_DELIMITER", field_delimiter, "no part of RECORD_DELIMITER, and does not contain it"
        )


def _type(value: Setting) -> str:
    if not isinstance(value, str) or value.upper() not in _OPTIONS:
        raise invalid_value("TYPE", value, ", ".join(TYPES))
    return value.upper()


# -- What CREATE STAGE and CREATE FILE FORMAT define -----------------------------------------------------

# Columns of their own in the hidden table, and what is not kept.
_APART = frozenset({"database", "schema", "name", "created_on_ms", "temporary"})


@dataclass(frozen=True, slots=True)
class Definition:
    """What stages and file formats have in common.

    :cvar KIND: how privileges name the kind.
    :cvar WORD: how errors name it.
    :cvar MADE: how CREATE names it.
    """

    KIND: ClassVar[str]
    WORD: ClassVar[str]
    MADE: ClassVar[str]

    database: str
    schema: str
    name: str
    created_on_ms: int

    def __str__(self) -> str:
        """Name as Snowflake's messages print it."""
        return ".".join(self.path)

    @property
    def path(self) -> tuple[str, str, str]:
        """Database, schema and name."""
        return self.database, self.schema, self.name

    @property
    def key(self) -> tuple[str, str]:
        """Schema and name."""
        return self.schema, self.name

    @property
    def folders(self) -> tuple[str, ...]:
        """Folder of an internal stage's files."""
        return ()

    def moved(self, change: Rename) -> Self:
        """Return it as it is after a rename of its database or schema."""
        database, schema = change.moved((self.database, self.schema))
        return dataclasses.replace(self, database=database, schema=schema)

    def to_row(self) -> list[Any]:
        """Return the row of the hidden table."""
        names = [one.name for one in dataclasses.fields(self) if one.name not in _APART]
        kept = {name: getattr(self, name) for name in names}
        return [*self.key, self.created_on_ms, json.dumps(kept, default=dict)]

    @classmethod
    def from_row(cls, database: str, schema: str, name: str, created_on_ms: int, text: str) -> Self:
        """Read the row that :meth:`to_row` writes."""
        return cls(database, schema, name, created_on_ms, **_with_tuples(json.loads(text)))


@dataclass(frozen=True, slots=True)
class StageDefinition(Definition):
    """One named stage.

    :param identity: random id, the name of an internal stage's folder: a replaced stage starts empty.
    :param url: ``s3://bucket/path`` or ``file:///folder`` of an external stage; None for an internal one.
    :param endpoint: ``host:port`` that serves the bucket, or None for the service's own.
    :param credentials: AWS_KEY_ID, AWS_SECRET_KEY and AWS_TOKEN as far as they were given.
    :param file_format: format options of the stage, with TYPE where it was given.
    :param directory: True when DIRECTORY = (ENABLE = TRUE).
    :param temporary: True when the stage ends with its session.
    """

    KIND = "STAGE"
    WORD: ClassVar[str] = "Stage"
    MADE = "Stage area"
    RELATION: ClassVar[str] = "stages"

    identity: str = field(default_factory=lambda: uuid.uuid4().hex)
    url: str | None = None
    endpoint: str | None = None
    region: str | None = None
    storage_integration: str | None = None
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    file_format: Mapping[str, OptionValue] = field(default_factory=dict)
    format_name: tuple[str, ...] = ()
    copy_options: Mapping[str, OptionValue] = field(default_factory=dict)
    comment: str | None = None
    directory: bool = False
    temporary: bool = False

    @property
    def is_external(self) -> bool:
        """True when the files are outside of the service."""
        return self.url is not None

    @property
    def cloud(self) -> str | None:
        """Return ``AWS`` for a bucket, ``LOCAL`` for a folder, None for an internal stage."""
        if self.url is None:
            return None
        return "AWS" if self.url.startswith("s3") else "LOCAL"

    @property
    def folders(self) -> tuple[str, ...]:
        """Folder of an internal stage's files."""
        return () if self.is_external else (self.identity,)

    def moved(self, change: Rename) -> StageDefinition:
        """Return the stage as it is after a rename of its database or schema, or of its file format's."""
        moved = Definition.moved(self, change)
        return dataclasses.replace(moved, format_name=change.moved(self.format_name))


@dataclass(frozen=True, slots=True)
class FileFormatDefinition(Definition):
    """One named file format."""

    KIND = "FILE FORMAT"
    WORD: ClassVar[str] = "File format"
    MADE = "File format"
    RELATION: ClassVar[str] = "file_formats"

    settings: Mapping[str, OptionValue]
    comment: str | None = None
    temporary: bool = False


def _with_tuples(stored: Any) -> Any:
    if isinstance(stored, dict):
        return {name: _with_tuples(value) for name, value in stored.items()}
    return tuple(stored) if isinstance(stored, list) else stored
