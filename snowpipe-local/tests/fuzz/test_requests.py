"""Credentials, mutated."""

import base64
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.conftest import cases
from tests.fuzz.wire import Wire, channel_path

_HEADER = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=80)


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

    @cases(0.1)
    @given(token=st.one_of(_HEADER, *(_mutated(one) for one in sorted(right))))
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
