"""Arguments of authors, checked: mappings, words of a few, unknown columns; and what was sent of the rows."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

_MAY_BE_SECRET = re.compile(r"credential|encrypt|key|passw|secret|token", re.IGNORECASE)
_NAME_OF_SECRET = re.compile(
    r"passw|passphrase|pwd|secret|token|credential|signature|jaas|authorization$|user.?info|connection.?string|"
    r"\bs(?:as|ig)\b|(?:access|account|api|master|private|shared).?key",
    re.IGNORECASE,
)
_TEMPLATE = r"\{\{(?:(?!\}\}).)*\}\}"


def _texts(but: str) -> str:
    """An expression for templates, and for characters other than these."""
    return rf"(?:{_TEMPLATE}|(?!\{{\{{)[^\s'\"{but}])"


_PASSWORD = re.compile(
    # The number of a port is not a password.
    rf"(://){_texts(':/@[')}*:(?!\d+(?:[/,;?]|$)){_texts('@')}*@"
    rf"|(jdbc:oracle:\w+:){_texts('/@')}+/(?:\"[^\"]*\"|{_texts('@')}+)@"
)
_ADDRESS = re.compile(rf"\s*(?:{_TEMPLATE}|[A-Za-z][\w+.-]*)[:=]")
"""How URLs and connection strings begin, and SQL does not."""
_PARAMETER = re.compile(
    rf"(?<![^?&#;:,(\s])([\w.-]+)\s*=\s*(?!true\b|false\b)(?:'[^']*'|\"[^\"]*\"|{_texts('?&;,)')}+)"
)


_USER = rf"(?!jdbc:){_texts(':/@,;')}+:(?!//|\d+(?:[/,;?]|$))"
_PEM = "[A-Z0-9 ]*PRIVATE KEY-----"
_SHAPES = (
    re.compile(rf"-----BEGIN {_PEM}.*?(?:-----END {_PEM}|\Z)", re.DOTALL),
    re.compile(r"(?<![\w-])eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]*"),
    re.compile(r"(?:(?<=[:=\"'])|^)\s*(?:bearer|basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE),
    re.compile(
        r"\b(?:gh[pousr]_\w{20}|github_pat_\w{20}|glpat-[\w-]{20}|xox[abeprs]-\w{8}|dapi[0-9a-f]{32}"
        r"|sk-[\w-]{20}|AIza[\w-]{30}|hv[bs]\.\w{12}|A[KS]IA[A-Z0-9]{16}[:/]\S)\S*"
    ),
    re.compile(
        r"\b(?:identified\s+by|password(?:\s+for\s+\S+)?\s*=?|secret\b|[\w.]*secret_(?:access_)?key\s*=?"
        r"|(?:aws_token|azure_sas_token|master_key|session_token)\s*=)\s*(?:'[^']+'|\"[^\"]+\")",
        re.IGNORECASE,
    ),
    re.compile(r"secret_(?:access_)?key\s*=\s*[^\s;,&'\"]+", re.IGNORECASE),
    re.compile(rf"(?:(?<=[,;])|^)\s*{_USER}{_texts('@')}+@(?=[\w\[{{])"),
)
"""What is a secret whatever its option is called: keys, tokens, passwords in SQL, ``user:password@host``."""
_KEY_OF_OBJECT = re.compile(r'"([^"\\]+)"\s*:\s*(?:"[^"]|\d)')
_BASE64 = re.compile(r"\s*(?:e[wy]|LS0t)[\w+/\s-]{40,}=*\s*")


# pragma: no mutate start (arguments of authors)


def is_named_like_a_secret(name: str) -> bool:
    """True for names of options that hold passwords, keys and the like, so that the option is refused."""
    return _NAME_OF_SECRET.search(name) is not None


def without_secrets(text: str) -> str:
    """A text with ``…`` for passwords and tokens of URLs and connection strings, and what looks like them."""
    if _is_object_with_secret(text):
        return "…"
    for shape in _SHAPES:
        text = shape.sub("…", text)

    def shown(found: re.Match[str]) -> str:
        return f"{found[1]}=…" if is_named_like_a_secret(found[1]) else found[0]

    text = _PASSWORD.sub(lambda found: f"{found[1] or found[2]}…@", text)
    return _PARAMETER.sub(shown, text) if _ADDRESS.match(text) else text


def _is_object_with_secret(text: str) -> bool:
    """True for JSON with a secret in it, as of a service account, in base64 as well, or a key in base64."""
    if _BASE64.fullmatch(text):
        data = "".join(text.split()).rstrip("=").replace("-", "+").replace("_", "/")
        text = base64.b64decode(data[: len(data) // 4 * 4]).decode("utf-8", "replace")
        if "PRIVATE KEY-----" in text:
            return True
    return text.lstrip().startswith(("{", "[")) and any(
        map(is_named_like_a_secret, _KEY_OF_OBJECT.findall(text))
    )


def mapping_argument(name: str, value: Any) -> dict[str, Any]:
    """Take a mapping, or its JSON text as a template renders it; None counts as an empty one."""
    if isinstance(value, str):
        try:
            value = json.loads(value or "null")
        except ValueError:
            raise ConfigurationError(
                f"{name} is the text {value[:80]!r}, not a JSON object: give a mapping, or a template "
                'that ends in "| tojson"'
            ) from None
    if value is not None and not isinstance(value, Mapping):
        raise ConfigurationError(f"{name} is {value!r}: give a mapping")
    return dict(value or {})


def known_keys(kind: type[Any], values: Any, what: str) -> dict[str, Any]:
    """Check that a mapping, or an object of JSON, has the keys of a dataclass."""
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"{what} is {values!r}: give a mapping, or in JSON an object with keys")
    known = {one.name: one for one in dataclasses.fields(kind) if one.init}
    unknown = sorted(str(key) for key in values if key not in known)
    if unknown:
        given = values.get(unknown[0])
        plain = given is None or isinstance(given, bool | int | float | str)
        value = f" (value {given!r})" if plain and not _MAY_BE_SECRET.search(unknown[0]) else ""
        raise ConfigurationError(f"{what} has the unknown key {unknown[0]!r}{value}: use {sorted(known)}")
    for name, one in known.items():
        required = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        if name not in values and required:
            raise ConfigurationError(f"{what} lacks the key {name!r}: add it")
    return dict(values)


def known_arguments(kind: type[Any], given: Any, what: str) -> dict[str, Any]:
    """Take a mapping, or its JSON text, of fields of a dataclass; numbers that are text are read again."""
    values = known_keys(kind, mapping_argument(what, given) if isinstance(given, str) else given, what)
    fields = {one.name: one for one in dataclasses.fields(kind)}
    return {
        name: _read(value, _kinds(fields[name])) if isinstance(value, str) else value
        for name, value in values.items()
    }


def check_numbers_and_switches(value: Any) -> None:
    """Make sure that a dataclass's numbers are finite and not negative, and its switches truth values."""
    for one in dataclasses.fields(value):
        given, kinds = getattr(value, one.name), _kinds(one)
        if given is None and "None" in kinds:
            continue
        if kinds & _NUMBERS:
            if isinstance(given, bool) or not isinstance(given, int | float):
                raise ConfigurationError(f"{one.name} is {given!r}: give a number")
            if not math.isfinite(given) or given < 0:
                raise ConfigurationError(f"{one.name} is {given!r}: give a number of 0 or more")
        elif "bool" in kinds and not isinstance(given, bool):
            raise ConfigurationError(f"{one.name} is {given!r}: give true or false")


_NUMBERS = {"int", "float"}


def _kinds(field: dataclasses.Field[Any]) -> set[str]:
    """The types of a field, as its module writes them."""
    return set(str(field.type).split(" | "))


def _read(text: str, kinds: set[str]) -> Any:
    """A number or a truth value that a template has made a text; any other text as it is."""
    if "bool" in kinds:
        return {"true": True, "false": False}.get(text.strip().lower(), text)
    for kind in (int, float) if kinds & _NUMBERS else ():
        try:
            return kind(text)
        except ValueError:
            continue
    return text


# -- Arguments that are one of a few words ---------------------------------------------------------------

BinaryFormat = Literal["BASE64", "HEX", "UTF-8"]
NonFinite = Literal["refuse", "null"]
UnknownTypes = Literal["fail", "ignore"]
"""What becomes of a logical type that is not known: ``ignore`` loads its value as it is."""


FAIL_OR_REPORT = ("fail", "report")


def check_one_of(name: str, value: object, choices: Iterable[object]) -> None:
    """Make sure that an argument has one of its values."""
    known = list(choices)
    if value not in known:
        raise ConfigurationError(f"{name} is {value!r}: it must be one of {known}")


def check_switch(name: str, value: object) -> None:
    """Make sure that an argument without a template is True or False: any text would count as True."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} is {value!r}: give True or False; no template is rendered")


# pragma: no mutate end


# -- What a run reports of keys of its rows for which the table has no column: how many rows have each ---
#
# How they are found is :mod:`~airflow_provider_snowpipe.streaming.key_check`'s; this is all that operators
# need. Beside them stands what else was counted of the rows.

OnUnknown = Literal["warn", "fail", "ignore"]
UNKNOWN_COLUMNS: tuple[OnUnknown, ...] = ("warn", "fail", "ignore")
MOST_NAMES = 20
"""Keys that are named; where they are data, such as ids of customers, there is no end of them."""
_LONGEST_NAME = 100


def add_counts(counts: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Add up rows by key, of at most 20 keys, those that came first."""
    found = dict(counts)
    for key, rows in more.items():
        name = key if len(key) <= _LONGEST_NAME else f"{key[:_LONGEST_NAME]}…"
        if name in found or len(found) < MOST_NAMES:
            found[name] = found.get(name, 0) + rows
    return found


def named(counts: Mapping[str, int]) -> str:
    """Keys and their rows in words, for people."""
    return ", ".join(f"{key!r} ({rows:,} rows)" for key, rows in add_counts({}, counts).items())


MOST_UNLOADED = 20
"""Rows that did not load, and that a run describes; of more it reports the number."""
_SPECIAL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclasses.dataclass(frozen=True, slots=True)
class UnloadedRow:
    """A row that did not load, short enough for an XCom and a page.

    :param where: its channel, or its file in a stage
    :param position: its position there, None where nobody knows it
    :param text: the first 200 characters of the row, None where they are not known or not to be shown
    """

    where: str
    position: str | None
    reason: str
    text: str | None = None

    @classmethod
    def of(cls, where: str, position: object, reason: str, row: bytes | str | None) -> Self:
        """Cut what is too long, and replace what cannot be printed, such as NUL or a change of direction."""
        if isinstance(row, bytes):
            row = row[:800].decode("utf-8", "replace")
        at = None if position is None else _plain(str(position), 500)
        return cls(_plain(where, 500), at, _plain(reason, 500), None if row is None else _plain(row, 200))


def _plain(text: str, most: int) -> str:
    return _SPECIAL.sub("\N{REPLACEMENT CHARACTER}", text[:most])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SentRows:
    """What was sent on one channel, and what that took.

    :param bytes: their size as NDJSON, before compression
    :param append_seconds: time until the service had received them
    :param commit_seconds: time from then until they were committed, 0 where nobody waited
    :param requests: appends that the service answered, or that Snowflake's SDK took
    :param request_seconds: time that their answers took together, 0 with the SDK, which reports none
    :param dead_lettered: rows put aside because they do not fit the table, not among ``rows``
    :param undecoded: records that were skipped because they cannot be decoded, likewise
    :param unknown_columns: rows with a key that matches no column of the table, by key; at most 20 keys
    """

    rows: int = 0
    bytes: int = 0
    append_seconds: float = 0.0
    commit_seconds: float = 0.0
    requests: int = 0
    request_seconds: float = 0.0
    longest_request: float = 0.0
    retries: int = 0
    dead_lettered: int = 0
    undecoded: int = 0
    unknown_columns: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def counts(self) -> dict[str, Any]:
        """What was sent, by name, for another value that has it."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(SentRows)}

    def and_then(self, more: SentRows) -> Self:
        """The same value with what was sent later on the same channel."""
        together: dict[str, Any] = {
            "longest_request": max(self.longest_request, more.longest_request),
            "unknown_columns": add_counts(self.unknown_columns, more.unknown_columns),
        }
        later = more.counts()
        added = {name: one + later[name] for name, one in self.counts().items() if name not in together}
        return dataclasses.replace(self, **added, **together)
