"""An HTTP answer reduced to what the protocol looks at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_LONGEST_QUOTE = 300


IF_NO_ANSWER = (
    "See whether the service is up, whether its address is right, and whether this machine may reach it "
    "(firewall, proxy)"
)
"""What to do about a service that does not answer."""


class UnreachableError(Exception):
    """One attempt got no answer (connection refused or lost, time-out). The outcome is unknown."""


@dataclass(frozen=True)
class Answer:
    """What came back for one attempt.

    :param status: the HTTP status
    :param body: the body's bytes, decoded from any transfer encoding
    :param retry_after: seconds the service asks to wait, None where it does not ask
    """

    status: int
    body: bytes
    retry_after: float | None = None

    @property
    def ok(self) -> bool:
        """True for a 2xx status."""
        return 200 <= self.status < 300

    @cached_property
    def json(self) -> Any:
        """The body as JSON, None where it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace")

    @property
    def code(self) -> str:
        """The service's stable error code; empty where the body has none ("code" or "error_code")."""
        if isinstance(self.json, Mapping):
            code = self.json.get("code", self.json.get("error_code"))
            if isinstance(code, str):
                return code
        return ""

    def describe(self) -> str:
        """Say what the service answered, for an error's text."""
        message = self.json.get("message") if isinstance(self.json, Mapping) else None
        parts = [f"HTTP {self.status}"]
        if self.code:
            parts.append(self.code)
        if isinstance(message, str) and message:
            parts.append(message[:_LONGEST_QUOTE])
        return ", ".join(parts)
