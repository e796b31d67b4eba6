"""Sessions of the connector protocol: their tokens, and what ends them."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass

from airflow_provider_snowpipe.local.access.access import Access
from airflow_provider_snowpipe.local.sql.execution import in_background
from airflow_provider_snowpipe.local.sql.session import Session


def now() -> float:
    """Return the machine's monotonic time in seconds."""
    return time.monotonic()


@dataclass(slots=True)
class _Open:
    session: Session
    user_since_ms: int
    used_at: float


class Sessions:
    """Open sessions by the tokens that their clients hold.

    A session ends when its client logs out, when nothing was asked of it for a while, and at once when its
    user is disabled or dropped or loses the session's role.

    :param access: tells which users there are, and every change of them.
    :param idle_seconds: a session of which nothing was asked for so long ends.
    """

    def __init__(self, access: Access, idle_seconds: float) -> None:
        self._access = access
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._by_token: dict[str, _Open] = {}
        access.on_change(self._end_dead)

    def add(self, session: Session) -> tuple[str, str]:
        """Open a session.

        :returns: session token and master token.
        """
        known = self._access.state.users.get(session.user)
        opened = _Open(session, known.created_on_ms if known else 0, now())
        self._end_dead()
        return self._issue(opened)

    def renew(self, session: Session) -> tuple[str, str]:
        """Return two further tokens of an open session."""
        with self._lock:
            opened = next(known for known in self._by_token.values() if known.session is session)
        return self._issue(opened)

    def find(self, token: str) -> Session | None:
        """Return the session of a token, and count that as use; None when it has ended."""
        with self._lock:
            opened = self._by_token.get(token)
        if opened is None:
            return None
        if not self._is_alive(opened):
            self._end([opened])
            return None
        opened.used_at = now()
        return opened.session

    def close(self, session: Session) -> None:
        """End a session whose client logs out; a statement that still runs goes to its end."""
        self._remove({id(session)})
        session.close()

    def _issue(self, opened: _Open) -> tuple[str, str]:
        token, master = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        with self._lock:
            self._by_token[token] = self._by_token[master] = opened
        return token, master

    def _is_alive(self, opened: _Open) -> bool:
        session = opened.session
        user = self._access.state.users.get(session.user)
        return (
            user is not None
            and not user.disabled
            and user.created_on_ms == opened.user_since_ms
            and self._access.may_use(session.user, session.role)
            # A statement that runs for hours is use of its session.
            and (session.is_busy or now() - opened.used_at < self._idle_seconds)
        )

    def _end_dead(self) -> None:
        with self._lock:
            ended = [known for known in self._by_token.values() if not self._is_alive(known)]
        self._end(ended)

    def _end(self, ended: list[_Open]) -> None:
        sessions = {id(opened.session): opened.session for opened in ended}
        self._remove(sessions.keys())
        for session in sessions.values():
            # The statement that ended the session may be its own.
            in_background(session.end)

    def _remove(self, sessions: Collection[int]) -> None:
        with self._lock:
            self._by_token = {
                token: known for token, known in self._by_token.items() if id(known.session) not in sessions
            }
