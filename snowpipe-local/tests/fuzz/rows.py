"""Bodies of appends: right rows, wrong rows, broken text, and every way to compress and cut them."""

import gzip
import json
from typing import Any

import zstandard
from hypothesis import strategies as st

TABLE = (
    "id INT, name VARCHAR(10), at TIMESTAMP_NTZ, v VARIANT, b BINARY, f FLOAT, d DATE, t TIME, "
    "x NUMBER(10,2), ok BOOLEAN, need INT NOT NULL, z TIMESTAMP_TZ, a ARRAY, o OBJECT"
)
_NAMES = ["id", "ID", "name", "at", "v", "b", "f", "d", "t", "x", "ok", "need", "z", "a", "o", "unknown", ""]
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**45), 10**45),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        ["2026-01-01", "2026-13-41", "2026-01-01T00:00:00Z", "23:59:60", "1e999", "-0", "NaN", "aGk=", "\x00",
         "\ud800", "9" * 60, "1.5", "TRUE", "0x10", " 1 ", "1_000", "262143-12-31", "-290308-12-31"]
    ),
)  # fmt: skip
VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)


def _line(value: Any) -> bytes:
    return json.dumps(value).encode()


_RIGHT = st.fixed_dictionaries(
    {"id": st.integers(0, 10**9), "name": st.text(max_size=10), "need": st.just(1)}
).map(_line)
_WRONG = st.dictionaries(st.sampled_from(_NAMES), VALUES, max_size=6).map(_line)
_TWICE = st.builds(
    lambda name, one, two: b"{%s:%s,%s:%s}" % (name, _line(one), name, _line(two)),
    st.sampled_from(_NAMES).map(_line), _SCALARS, _SCALARS,
)  # fmt: skip
_CUT = st.builds(lambda line, cut: line[: cut % (len(line) + 1)], _RIGHT | _WRONG, st.integers(0, 400))
_DEEP = st.builds(
    lambda depth, kind: b'{"need":1,"v":' + kind[0] * depth + b"1" + kind[1] * depth + b"}",
    st.sampled_from([10, 500, 1000, 5000, 100_000]),
    st.sampled_from([(b"[", b"]"), (b'{"a":', b"}"), (b"[", b"")]),
)
LINES = st.one_of(
    _RIGHT, _RIGHT, _WRONG, _WRONG, _TWICE, _CUT, VALUES.map(_line), st.binary(max_size=60),
    st.text(max_size=60).map(str.encode), _DEEP, st.just(b"\xef\xbb\xbf{}"), st.just(b""),
    st.just(b'{"need":1,"v":"\\ud800"}'), st.just(b'{"need":1,"name":"\\u0000"}'),
    st.just(b'{"need":1,"v":"\x00"}'),
)  # fmt: skip
BODIES = st.builds(
    lambda lines, end, last: end.join(lines) + (end if last else b""),
    st.lists(LINES, max_size=8),
    st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\r", b"\x00"]),
    st.booleans(),
)


def _frames(body: bytes) -> bytes:
    middle = len(body) // 2
    return zstandard.compress(body[:middle]) + zstandard.compress(body[middle:])


_ENCODERS = {
    "": lambda body: body,
    "identity": lambda body: body,
    "gzip": lambda body: gzip.compress(body, mtime=0),
    "zstd": zstandard.compress,
    "ZSTD": _frames,
    " gzip ": lambda body: gzip.compress(body[:5], mtime=0) + gzip.compress(body[5:], mtime=0),
}


@st.composite
def encoded(draw: st.DrawFn) -> tuple[bytes, str]:
    """Draw a body on the wire and its Content-Encoding: right, damaged, cut, or declared wrongly."""
    encoding = draw(st.sampled_from(sorted(_ENCODERS)))
    body = _ENCODERS[encoding](draw(BODIES))
    match draw(st.sampled_from(["right", "right", "right", "cut", "flip", "more", "lie"])):
        case "cut":
            body = body[: draw(st.integers(0, len(body)))]
        case "flip" if body:
            position = draw(st.integers(0, len(body) - 1))
            changed = bytes([body[position] ^ draw(st.integers(1, 255))])
            body = body[:position] + changed + body[position + 1 :]
        case "more":
            body += draw(st.binary(min_size=1, max_size=20))
        case "lie":
            wrong = ["br", "deflate", "gzip, zstd", "*", "x" * 3000]
            encoding = draw(st.sampled_from([*sorted(_ENCODERS), *wrong]))
    return body, encoding
