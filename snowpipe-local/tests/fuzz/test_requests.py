"""Tokens, credentials, paths and headers, mutated."""

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.budget import cases
from tests.fuzz.conftest import wait_for_token
from tests.fuzz.wire import Wire, bearer, channel_path

_TEXT = st.text(max_size=60)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=8,
)
_HEADER = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=80)
_NUMBERS = st.sampled_from(["0", "1", "00", "-1", "1.0", "1e3", "9" * 400, "\u0661", " 1", "1\n", "0x1", ""])


class Ordered:
    """The writer of the channel ``right``."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.next = str(wire.open("ORDERED", "right")["next_continuation_token"])
        self.sent = 0

    def append(self) -> None:
        query = {"continuationToken": self.next, "endOffsetToken": str(self.sent)}
        answer = self._wire.append("ORDERED", "right", b'{"n":%d}' % self.sent, query)
        assert answer.status == 200, answer
        self.next, self.sent = answer.json["next_continuation_token"], self.sent + 1


@pytest.fixture(scope="module")
def ordered(wire: Wire) -> Iterator[Ordered]:
    """A writer who sends what is right between what is wrong; in the end its rows are right."""
    wire.rows("CREATE TABLE ordered (n INT)")
    writer = Ordered(wire)
    yield writer
    writer.append()
    wait_for_token(wire, "ORDERED", "right", str(writer.sent - 1))
    counted = wire.rows("SELECT count(*), count(DISTINCT n), max(n) + 1 FROM ordered")
    assert counted == [[str(writer.sent)] * 3]


_PAIRS = st.builds(lambda a, b: f"{a}_{b}", _NUMBERS | st.integers(0, 3), _NUMBERS | st.integers(0, 99))


@cases(0.05)
@given(token=_PAIRS | _TEXT, offset=_TEXT)
def test_no_continuation_token_but_the_right_one_is_taken(
    wire: Wire, ordered: Ordered, token: str, offset: str
) -> None:
    ordered.append()
    if token != ordered.next:
        query = {"continuationToken": token, "endOffsetToken": offset}
        assert wire.append("ORDERED", "right", b'{"n":-5}', query).status in (400, 409)


def _part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


_CLAIMS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("nbf", "aud", "jti"), _JSON)
    | {
        "iss": st.sampled_from(["LOCAL.DEMO", "snowpipe-local", "snowpipe-local-oauth"]) | _JSON,
        "sub": st.sampled_from(["LOCAL.DEMO", "DEMO"]) | _JSON,
        "scope": st.just("127.0.0.1") | _JSON,
        "iat": st.integers() | _JSON,
        "exp": st.integers() | st.just(time.time() + 1000) | _JSON,
    },
)
_ALGORITHMS = st.sampled_from(["none", "None", "HS256", "HS512", "RS256", "RS512", "ES256", "PS256"])
_HEADS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("typ", "kid", "crit", "b64", "jwk"), _JSON)
    | {"alg": _ALGORITHMS | _JSON, "jku": st.just("https://127.0.0.1/keys")},
)
_FORGED = st.builds(
    lambda head, claims, signature: f"{_part(head)}.{_part(claims)}.{signature}",
    _HEADS | _JSON,
    _CLAIMS | _JSON,
    st.sampled_from(["", "AAAA", "x" * 342, "not base64!"]),
)


@st.composite
def _mutated(draw: st.DrawFn, token: str) -> str:
    position = draw(st.integers(0, len(token) - 1))
    match draw(st.sampled_from(["change", "cut", "insert", "twice"])):
        case "change":
            return token[:position] + draw(st.sampled_from("AZaz09-_.=")) + token[position + 1 :]
        case "cut":
            return token[:position]
        case "insert":
            return token[:position] + draw(_HEADER) + token[position:]
    return f"{token}.{token}"


def test_no_token_but_the_signed_ones_is_accepted(wire: Wire) -> None:
    right = {wire.jwt, wire.scoped, (wire.service.data_dir / "demo_pat").read_text().strip()}
    path = "/v2/streaming/databases/LOCAL/schemas/PUBLIC/pipes/NONE-STREAMING:pipe-info"

    def payload(token: str) -> bytes:
        # The last character of base64 carries bits that mean nothing; such a token is the same one.
        head, _, signature = token.rpartition(".")
        return head.encode() + b"." + base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))

    @cases(0.15)
    @given(token=st.one_of(_FORGED, _HEADER, *(_mutated(one) for one in sorted(right))))
    def refuse(token: str) -> None:
        token = token.strip()
        if any(token == one or (one.count(".") == 2 and _same(payload, token, one)) for one in right):
            return
        header = {"Authorization": b"Bearer " + token.encode("latin-1")}
        form = b"grant_type=urn:ietf:params:oauth:grant-type:jwt-bearer&scope=127.0.0.1"
        assert wire.send("GET", "/v2/streaming/hostname", header).status == 401
        assert wire.send("POST", "/oauth/token", header, form).status == 401
        assert wire.send("POST", path, header, b"{}").status == 401
        assert wire.send("POST", "/api/v2/statements", header, b'{"statement":"SELECT 1"}').status == 401
        data = channel_path("NONE", "c", data=True) + "/rows?continuationToken=1_0&requestId=x"
        assert wire.send("POST", data, header, b"{}").status == 401
        session = {"Authorization": b'Snowflake Token="' + token.encode("latin-1") + b'"'}
        assert wire.send("POST", "/session/heartbeat", session, b"{}").json["success"] is False

    refuse()


def _same(payload: Any, token: str, other: str) -> bool:
    try:
        return bool(payload(token) == payload(other))
    except ValueError:
        return False


_HEADERS = st.sampled_from(
    ["Content-Type", "Content-Encoding", "Accept", "Accept-Encoding", "X-Snowflake-Authorization-Token-Type",
     "User-Agent", "Range", "If-Match", "Cookie", "X-Forwarded-For", "Upgrade", "Connection", "Origin",
     "Sec-WebSocket-Key", "Sec-WebSocket-Version", "TE", "Via", "Forwarded", "X-HTTP-Method-Override",
     "Trailer"]
)  # fmt: skip
_WORDS = st.sampled_from(
    ["websocket", "h2c", "Upgrade", "close", "keep-alive", "zstd", "KEYPAIR_JWT", "OAUTH", "bytes=0-0", "13"]
)


@cases(0.07)
@given(headers=st.dictionaries(_HEADERS, _HEADER | _WORDS, max_size=5))
def test_any_header_is_answered(wire: Wire, headers: dict[str, str]) -> None:
    sent = {name: value.encode("latin-1") for name, value in headers.items()}
    wire.send("GET", "/health", sent)
    body = b'{"statement":"SELECT 1","database":"LOCAL"}'
    wire.send("POST", "/api/v2/statements", {**bearer(wire.jwt), **sent}, body)
