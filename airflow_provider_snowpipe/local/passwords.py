"""Password of the local service's user: made on first start, kept in a file that only its owner can read."""

from __future__ import annotations

import hmac
import secrets

from airflow_provider_snowpipe.local.datadir import DataDirectory, write_file

_RANDOM_BYTES = 24


class Password:
    """The password of one user.

    :param user: user name; compared without regard to case, as Snowflake does.
    :param secret: the password.
    """

    __slots__ = ("_secret", "user")

    def __init__(self, user: str, secret: str) -> None:
        self.user = user
        self._secret = secret

    def matches(self, user: str, password: str) -> bool:
        """Return True for this user and exactly this password; the time taken tells nothing about either."""
        same_user = hmac.compare_digest(user.upper().encode(), self.user.upper().encode())
        same_secret = hmac.compare_digest(password.encode(), self._secret.encode())
        return same_user and same_secret


def ensure_password(home: DataDirectory, user: str) -> Password:
    """Load the user's password, making one where there is none yet.

    :param home: data directory; the file gets mode 0600.
    :param user: user name.
    """
    if not home.password_file.exists():
        write_file(home.password_file, f"{secrets.token_urlsafe(_RANDOM_BYTES)}\n".encode(), mode=0o600)
    return Password(user, home.password_file.read_text().strip())
