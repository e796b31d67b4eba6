"""Tokens, credentials, paths and headers, mutated."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.budget import cases
from tests.fuzz.conftest import wait_for_token
from tests.fuzz.wire import Wire, bearer, channel_path

from tests import described_routes

_TEXT = st.text(max_size=60)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=8,
)
_HEADER = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=80)
_NUMBERS = st.sampled_from(["0", "1", "00", "-1", "1.0", "1e3", "9" * 400, "\u0661", " 1", "1\n", "0x1", ""])


@pytest.fixture(scope="module")
def channel(wire: Wire) -> Iterator[str]:
    """A channel whose writer sends what is right between what is wrong; in the end its rows are right."""
    wire.rows("CREATE TABLE ordered (n INT)")
    yield "right"
    status = wire.status("ORDERED", "right")
    token = status["last_committed_offset_token"]
    counted = wire.rows("SELECT count(*), count(DISTINCT n), coalesce(max(n), -1) FROM ordered")
    assert counted == [[str(int(token) + 1), str(int(token) + 1), token]]


def test_no_continuation_token_but_the_right_one_is_taken(wire: Wire, channel: str) -> None:
    opened = wire.open("ORDERED", channel)
    state = {"next": opened["next_continuation_token"], "sent": 0}

    def right() -> None:
        number = state["sent"]
        query = {"continuationToken": state["next"], "endOffsetToken": str(number)}
        answer = wire.append("ORDERED", channel, b'{"n":%d}' % number, query)
        assert answer.status == 200, answer
        state["next"], state["sent"] = answer.json["next_continuation_token"], number + 1

    @cases(0.05)
    @given(
        token=st.one_of(
            st.builds(lambda a, b: f"{a}_{b}", _NUMBERS | st.integers(0, 3), _NUMBERS | st.integers(0, 99)),
            _TEXT,
        ),
        offset=_TEXT,
    )
    def wrong(token: str, offset: str) -> None:
        right()
        if token != state["next"]:
            query = {"continuationToken": token, "endOffsetToken": offset}
            assert wire.append("ORDERED", channel, b'{"n":-5}', query).status in (400, 409)

    wrong()
    right()
    wait_for_token(wire, "ORDERED", channel, str(state["sent"] - 1))


@pytest.mark.parametrize("share", [0.05])
def test_any_offset_token_is_kept_as_it_was_sent(wire: Wire, share: float) -> None:
    wire.rows("CREATE TABLE offsets (n INT)")
    state = {"next": wire.open("OFFSETS", "c")["next_continuation_token"], "token": None}

    @cases(share)
    @given(start=_TEXT, end=st.text(min_size=1, max_size=300))
    def keep(start: str, end: str) -> None:
        query = {"continuationToken": str(state["next"]), "startOffsetToken": start, "endOffsetToken": end}
        answer = wire.append("OFFSETS", "c", b'{"n":1}', query)
        assert answer.status == 200, answer
        state["next"], state["token"] = answer.json["next_continuation_token"], end

    keep()
    wait_for_token(wire, "OFFSETS", "c", state["token"])


def _part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


_CLAIMS = st.fixed_dictionaries(
    {},
    optional={
        "iss": st.sampled_from(["LOCAL.DEMO", "snowpipe-local", "snowpipe-local-oauth"]) | _JSON,
        "sub": st.sampled_from(["LOCAL.DEMO", "DEMO"]) | _JSON,
        "scope": st.just("127.0.0.1") | _JSON,
        "iat": st.integers() | _JSON,
        "exp": st.integers() | st.just(time.time() + 1000) | _JSON,
        "nbf": _JSON,
        "aud": _JSON,
        "jti": _JSON,
    },
)
_HEADS = st.fixed_dictionaries(
    {},
    optional={
        "alg": st.sampled_from(["none", "None", "HS256", "HS512", "RS256", "RS512", "ES256", "PS256"])
        | _JSON,
        "typ": _JSON,
        "kid": _JSON,
        "crit": _JSON,
        "b64": _JSON,
        "jku": st.just("https://127.0.0.1/keys"),
        "jwk": _JSON,
    },
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


_SEGMENT = st.one_of(
    st.sampled_from(
        ["..", ".", "", "%00", "%2e%2e", "%2F", "LOCAL", "PUBLIC", "v2", "%ff", "a%", '"', "ELASTIC"]
    ),
    _TEXT.map(lambda text: quote(text, safe="")),
)


@pytest.mark.parametrize("share", [0.08])
def test_any_path_and_query_is_answered(wire: Wire, share: float) -> None:
    routes = [route for route in described_routes.ROUTES if route.path != "/session"]

    @cases(share)
    @given(
        route=st.sampled_from(routes),
        method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"]),
        right=st.booleans(),
        parts=st.lists(_SEGMENT, min_size=8, max_size=8),
        query=st.dictionaries(
            st.sampled_from(["requestId", "async", "partition", "nullable", "x"]), _TEXT | _NUMBERS
        ),
        kind=st.sampled_from(["jwt", "scoped"]),
        body=_JSON,
    )
    def answer(
        route: described_routes.Route,
        method: str,
        right: bool,
        parts: list[str],
        query: dict[str, str],
        kind: str,
        body: Any,
    ) -> None:
        values = iter(parts)
        path = "/".join(next(values) if "{" in part else part for part in route.path.split("/"))
        if query:
            path += "?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        token = wire.jwt if kind == "jwt" else wire.scoped
        sent = route.method if right else method
        if sent != "HEAD":
            wire.send(sent, path, bearer(token), json.dumps(body).encode())

    answer()


@pytest.mark.parametrize("share", [0.07])
def test_any_header_is_answered(wire: Wire, share: float) -> None:
    names = [
        "Content-Type", "Content-Encoding", "Accept", "Accept-Encoding",
        "X-Snowflake-Authorization-Token-Type",
        "User-Agent", "Range", "If-Match", "Cookie", "X-Forwarded-For", "Upgrade", "Connection", "Origin",
        "Sec-WebSocket-Key", "Sec-WebSocket-Version", "TE", "Via", "Forwarded", "X-HTTP-Method-Override",
        "Trailer",
    ]  # fmt: skip
    values = _HEADER | st.sampled_from(
        [
            "websocket",
            "h2c",
            "Upgrade",
            "close",
            "keep-alive",
            "zstd",
            "KEYPAIR_JWT",
            "OAUTH",
            "bytes=0-0",
            "13",
        ]
    )
    body = b'{"statement":"SELECT 1","database":"LOCAL"}'

    @cases(share)
    @given(headers=st.dictionaries(st.sampled_from(names), values, max_size=5))
    def answer(headers: dict[str, str]) -> None:
        sent = {name: value.encode("latin-1") for name, value in headers.items()}
        wire.send("GET", "/health", sent)
        wire.send("POST", "/api/v2/statements", {**bearer(wire.jwt), **sent}, body)

    answer()
