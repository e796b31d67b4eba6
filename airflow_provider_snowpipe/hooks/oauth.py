"""OAuth access tokens fetched and renewed by Airflow's own Snowflake provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_snowpipe.streaming.errors import AuthenticationError


class OAuthClient:
    """Credentials that fetch an OAuth access token and renew it when it has expired.

    The request, its repetition and the token's expiry are those of ``SnowflakeHook.get_oauth_token``, so
    that one connection behaves alike for both providers.

    :param conn_id: the connection's id, for errors
    :param config: client id, client secret, and what the grant needs
    :param grant_type: ``refresh_token``, ``client_credentials`` or ``password``
    :param token_endpoint: where tokens are issued, None for the account's own endpoint
    """

    def __init__(
        self, conn_id: str, config: Mapping[str, Any], grant_type: str, token_endpoint: str | None
    ) -> None:
        self._conn_id = conn_id
        self._config = dict(config)
        self._grant_type = grant_type
        self._token_endpoint = token_endpoint
        self._hook: Any = None

    def __repr__(self) -> str:
        return f"OAuthClient({self._conn_id!r}, grant_type={self._grant_type!r})"

    @property
    def token_type(self) -> str:
        """``OAUTH``."""
        return "OAUTH"

    def bearer(self) -> str:
        """An access token that has not expired.

        :raises AuthenticationError: if no token is issued
        """
        import requests
        from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

        if self._hook is None:
            self._hook = SnowflakeHook(snowflake_conn_id=self._conn_id)
        try:
            token: str = self._hook.get_oauth_token(
                conn_config=self._config,
                token_endpoint=self._token_endpoint or "",
                grant_type=self._grant_type,
            )
        except (requests.RequestException, ValueError, KeyError) as error:
            raise AuthenticationError(
                f"connection {self._conn_id!r}: no OAuth token for the grant {self._grant_type!r} "
                f"({type(error).__name__}); check client id, client secret, grant and token endpoint"
            ) from None
        return token
