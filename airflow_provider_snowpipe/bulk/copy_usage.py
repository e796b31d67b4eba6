"""What COPY statements have cost: seconds of a warehouse, and the credits that the account says.

``QUERY_HISTORY`` of the information schema knows a statement as soon as it has ended. The account's own view
``QUERY_ATTRIBUTION_HISTORY`` knows the credits, up to eight hours later. Neither has idle time of the
warehouse, nor the minimum that is billed for a resume.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Collection, Mapping, Sequence

from airflow_provider_snowpipe.bulk.copy_history import RunSql
from airflow_provider_snowpipe.streaming.errors import SqlError
from airflow_provider_snowpipe.streaming.names import quote_identifier

log = logging.getLogger(__name__)

ATTRIBUTED_AFTER = dt.timedelta(hours=8)
"""How late the account's view may be (page "QUERY_ATTRIBUTION_HISTORY view")."""
_EARLIEST = dt.timedelta(days=7)
"""As far back as the information schema knows statements."""


def warehouse_seconds(
    run: RunSql, database: str, query_tag: str, since: dt.datetime, now: dt.datetime
) -> dict[str, float] | None:
    """Seconds that the COPY statements with a query tag ran, by size of the warehouse; None for not known.

    :param run: runs SQL in the account
    :param database: any database that the role may use
    :param query_tag: the tag
    :param since: the first timestamp
    :param now: the time
    """
    earliest = max(since, now - _EARLIEST).isoformat(timespec="milliseconds")
    statement = (
        "SELECT WAREHOUSE_SIZE, EXECUTION_TIME FROM TABLE("  # noqa: S608
        f"{quote_identifier(database)}.INFORMATION_SCHEMA.QUERY_HISTORY("
        "END_TIME_RANGE_START => %s::TIMESTAMP_LTZ, RESULT_LIMIT => 10000)) "
        "WHERE QUERY_TAG = %s AND QUERY_TYPE = 'COPY' AND WAREHOUSE_SIZE IS NOT NULL"
    )
    rows = _known(run, statement, [earliest, query_tag], "how long COPY ran")
    if not rows:
        return None
    found: dict[str, float] = {}
    for row in rows:
        size = str(row["warehouse_size"]).upper()
        found[size] = found.get(size, 0.0) + float(str(row["execution_time"])) / 1000
    return found


def attributed_credits(run: RunSql, query_tags: Collection[str], since: dt.datetime) -> dict[str, float]:
    """The credits that the account attributes to statements with some query tags, as far as it knows.

    :param run: runs SQL in the account
    :param query_tags: the tags
    :param since: the first timestamp
    """
    tags = sorted(query_tags)
    statement = (
        "SELECT QUERY_TAG, SUM(CREDITS_ATTRIBUTED_COMPUTE) AS CREDITS "  # noqa: S608
        "FROM SNOWFLAKE.ACCOUNT_USAGE.QUERY_ATTRIBUTION_HISTORY WHERE START_TIME >= %s::TIMESTAMP_LTZ "
        f"AND QUERY_TAG IN ({', '.join(['%s'] * len(tags))}) GROUP BY QUERY_TAG"
    )
    values = [since.isoformat(timespec="milliseconds"), *tags]
    rows = _known(run, statement, values, "which credits are attributed to earlier loads") if tags else []
    return {str(row["query_tag"]): float(str(row["credits"])) for row in rows if row["credits"] is not None}


def _known(run: RunSql, statement: str, values: Sequence[str], what: str) -> Sequence[Mapping[str, object]]:
    """Ask for what only describes a load that has ended well: it must not fail for want of the answer."""
    try:
        return run(statement, values)
    except SqlError as error:
        log.info("%s is not known: %s", what, error)
        return []
