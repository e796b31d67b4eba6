"""The link from a task to its table or pipe in Snowsight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom

from airflow_provider_snowpipe.streaming.names import PipeName, quote_url_segment

if TYPE_CHECKING:
    from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook

SNOWSIGHT_KEY = "snowsight"
_SNOWFLAKE_DOMAIN = ".snowflakecomputing.com"


class SnowsightLink(BaseOperatorLink):
    """Where Snowsight shows what the task loads into: a default pipe's table, or the pipe.

    The task leaves the address as the XCom ``snowsight``. There is none for a service that is not
    Snowflake's own, such as the local one, nor for an account that is named by its old locator.
    """

    name = "Snowsight"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address that the task left, empty where there is none.

        :param operator: the operator
        :param ti_key: the task instance
        """
        found = XCom.get_value(ti_key=ti_key, key=SNOWSIGHT_KEY)
        return found if isinstance(found, str) else ""


def snowsight_url(hook: SnowpipeHook) -> str | None:
    """The address in Snowsight of what a hook's pipe loads into, None where there is none.

    :param hook: names account and pipe
    """
    host = urlsplit(hook.account_url()).hostname or ""
    if not host.endswith(_SNOWFLAKE_DOMAIN):
        return None
    return address(hook.account(), hook.pipe_name())


def address(account: str, pipe: PipeName) -> str | None:
    """The address of a default pipe's table, or of a pipe.

    :param account: the account identifier, ``<organization>-<account>``
    :param pipe: the pipe
    """
    organization, _, name = account.partition("-")
    if not name:
        return None
    table = pipe.default_table
    kind, thing = ("table", table) if table is not None else ("pipe", pipe.pipe)
    parts = (organization.lower(), name.lower())
    account_path = "/".join(map(quote_url_segment, parts))
    return (
        f"https://app.snowflake.com/{account_path}/#/data/databases/{quote_url_segment(pipe.database)}/schemas/"
        f"{quote_url_segment(pipe.schema)}/{kind}/{quote_url_segment(thing)}"
    )
