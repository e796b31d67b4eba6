"""Links from a task to where its rows are seen: the page of its channels, Snowsight, Spark's own page."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import islice
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom, conf

from airflow_provider_snowpipe.streaming.arguments import MOST_UNLOADED, UnloadedRow
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError
from airflow_provider_snowpipe.streaming.names import (
    DEFAULT_PIPE_SUFFIX,
    PipeName,
    full_name,
    quote_url_segment,
)
from airflow_provider_snowpipe.streaming.offsets import known_formats

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.bulk.copy_run import CopyRun
    from airflow_provider_snowpipe.bulk.ledger_entry import Entry
    from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook

log = logging.getLogger(__name__)
CHANNEL_PAGE_KEY = "channel_page"
PAGES_PREFIX = "/snowpipe"
"""Where the API server has this provider's pages."""
PAGES_ARE_SERVED = find_spec("airflow.api_fastapi") is not None
"""False on Airflow 2, whose web server is another one."""


_DEEPEST = 16
_GREATEST = 2.0**63


def raw_json(text: str | None) -> Any:
    """Read an XCom's stored text as JSON: no object is made of it, whatever class it names.

    JSON within a text is read as well: a task that ended in the triggerer leaves it so.

    :returns: texts, finite numbers, lists and dictionaries; None for anything that cannot be read
    """
    try:
        value = json.loads(text or "null", parse_float=_finite, parse_int=_finite, parse_constant=_finite)
        if isinstance(value, str):
            value.encode()
            return raw_json(value) if value[:1] in ("{", '"') else value
        inner = [value]
        for _ in range(_DEEPEST):
            inner = [
                one
                for outer in inner
                if isinstance(outer, dict | list)
                for one in (outer.values() if isinstance(outer, dict) else outer)
            ]
            if not inner:
                break
        if inner:
            return None
        if "\\u" in (text or ""):  # half of a surrogate pair, which no page can be encoded with
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value


def _finite(digits: str) -> float | int:
    """Read a number that a page can add up and draw."""
    if len(digits) < 19 and digits.lstrip("-").isdigit():
        return int(digits)
    if not abs(found := float(digits)) < _GREATEST:
        raise ValueError("the number is not a count of anything")
    return found


def _left_on_airflow_2(ti_key: Any, key: str) -> Any:
    """Read an XCom in the web server of Airflow 2, whose ``XCom.get_value`` makes objects."""
    from airflow.models.xcom import BaseXCom
    from airflow.utils.session import create_session

    names = {name: getattr(ti_key, name) for name in ("dag_id", "task_id", "run_id", "map_index")}
    with create_session() as session:
        left: Any = session.query(BaseXCom.value).filter_by(**names, key=key).scalar()
    return raw_json(left.decode("utf-8", "replace")) if left else None


class _LeftAddress(BaseOperatorLink):
    """A link to an address that the task leaves as an XCom."""

    key: ClassVar[str]

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address that the task left, empty where there is none."""
        if PAGES_ARE_SERVED:  # Airflow 3 asks in the task's own process only
            found = XCom.get_value(ti_key=ti_key, key=self.key)
        else:
            found = _left_on_airflow_2(ti_key, self.key)
        return found if isinstance(found, str) and found.startswith(("/", "https://", "http://")) else ""

    def leave(self, task_instance: Any, address: str | None) -> None:
        """Leave the address, so that the link is there while the task runs.

        Airflow 3 shows a link from an XCom of its own. When a task ends, it writes one for each link that the
        task has, an empty one for no address (Airflow 3.3.2); so the running task gets no links.
        """
        if (task := getattr(task_instance, "task", None)) is not None:
            task.operator_extra_links = ()
        address = address or ""
        task_instance.xcom_push(key=self.key, value=address)
        own_key = getattr(self, "xcom_key", None)
        if own_key is not None:  # Airflow 3
            task_instance.xcom_push(key=own_key, value=address)


class ChannelPageLink(_LeftAddress):
    """Where Airflow shows the task's channel, or the channels of its pipe that the task works on."""

    name = "Channel page"
    key = CHANNEL_PAGE_KEY


CHANNEL_PAGE_LINKS: tuple[ChannelPageLink, ...] = (ChannelPageLink(),) if PAGES_ARE_SERVED else ()


def leave_channel_page(task_instance: Any, address: str) -> None:
    """Leave the address of a page, where pages are served."""
    if PAGES_ARE_SERVED:
        ChannelPageLink().leave(task_instance, address)


OBSERVED_KEY = "observed"
"""The XCom of a task that failed: ``reason``, and what it saw of each channel."""
COPIES_KEY = "copies"
"""The XCom of a task's COPYs, which the page of the table's pipe shows."""
AUDIT_KEY = "audit"
"""The XCom of an audit, which the pages of its pipes show."""
_MOST_OBSERVED = 2_000
"""Channels of a pipe ("Limitations and considerations")."""


def leave_observed(
    ti: Any, reason: str, channels: Mapping[str, Mapping[str, Any]], unloaded: Any = None
) -> None:
    """Leave what a task saw of channels before it fails, since a task that fails has no value.

    :param channels: by name, as a load's value has them: ``committed`` is a token, or whether ``to`` is
    :param unloaded: rows that did not load, as :func:`unloaded_value` has them
    """
    kept = {
        name: {**one, "last_error": shown_error(one.get("last_error"))}
        for name, one in islice(channels.items(), _MOST_OBSERVED)
    }
    ti.xcom_push(key=OBSERVED_KEY, value={"reason": reason, "channels": kept, "unloaded": unloaded})


def shown_rows(rows: Iterable[UnloadedRow]) -> tuple[UnloadedRow, ...]:
    """Leave the rows' text out where ``[snowpipe] show_unloaded_rows`` is off."""
    return tuple(one if _shows_rows() else replace(one, text=None) for one in rows)


def shown_error(text: str | None) -> str | None:
    """Leave a text of Snowflake's out there as well: it may quote a value of the row."""
    return text if text is None or _shows_rows() else "the task's log shows it"


def _shows_rows() -> bool:
    shows: bool = conf.getboolean("snowpipe", "show_unloaded_rows", fallback=True)
    return shows


def unloaded_value(
    rows: Iterable[UnloadedRow], path: str | None = None, run: str | None = None
) -> dict[str, Any] | None:
    """What a task leaves of rows that did not load; None without any.

    :param path: the folder of dead letters, or the stage of files
    :param run: the run, as dead letters name it
    """
    found = [asdict(one) for one in shown_rows(rows)]
    return {"path": path, "run": run, "rows": found} if found else None


def channel_page(
    hook: SnowpipeHook, channel: str, *, target: str | None = None, offset_format: str | None = None
) -> str:
    """The address of a channel's page, without a host, so that it holds under every name of the server."""
    query = channel_query(hook.pipe_name(), channel, target=target, offset_format=offset_format)
    return f"{_base(hook)}/{query}"


def pipe_page(hook: SnowpipeHook, prefix: str = "") -> str:
    """The address of the list of a pipe's channels."""
    return f"{_base(hook)}/{channels_query(hook.pipe_name(), prefix)}"


def table_page(connection: str, database: str, schema: str, table: str) -> str:
    """The address of the list of channels of a table's default pipe."""
    names = {"database": database, "schema": schema, "pipe": f"{table}{DEFAULT_PIPE_SUFFIX}"}
    return f"{pages_base()}/connections/{quote(connection, safe='')}/channels?{urlencode(names)}"


def page_of_channels(hook: SnowpipeHook, channels: Sequence[str]) -> str:
    """The address where some channels are seen: a page of its own for one, the list for more or none."""
    if len(channels) == 1:
        return channel_page(hook, channels[0])
    return pipe_page(hook, commonprefix(channels))  # noqa: RUF071  a start of names, not a folder


def channel_query(
    pipe: PipeName, channel: str, *, target: str | None = None, offset_format: str | None = None
) -> str:
    """What comes after the connection in the address of a channel's page.

    A target of a caller's own format is left out: the API server imports nothing that an address names.
    """
    is_known = target is not None and offset_format in known_formats()
    owed = {"target": target, "offset_format": offset_format} if is_known else {}
    return _query("channel", pipe, channel=channel, **owed)


def channels_query(pipe: PipeName, prefix: str = "", page: int = 1) -> str:
    """What comes after the connection in the address of a pipe's list."""
    return _query("channels", pipe, prefix=prefix or None, page=page if page > 1 else None)


def pipe_query(pipe: PipeName, *, sort: str = "lag", descending: bool = True, page: int = 1) -> str:
    """What comes after the connection in the address of a pipe's page."""
    order = (
        {} if (sort, descending) == ("lag", True) else {"sort": sort, "descending": str(descending).lower()}
    )
    return _query("pipe", pipe, **order, page=page if page > 1 else None)


def pages_base() -> str:
    """The path of this provider's pages, with that of ``[api] base_url`` before it."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/") + PAGES_PREFIX


@dataclass(frozen=True, slots=True)
class PageAddress:
    """What the address of a page names: the connection, the pipe, and the channel where it is of one."""

    connection: str
    pipe: PipeName
    channel: str | None = None
    target: str | None = None

    @classmethod
    def read(cls, address: object) -> Self | None:
        """Read the XCom ``channel_page`` of a task; None for anything else."""
        if not isinstance(address, str):
            return None
        try:
            parts = urlsplit(address)
        except ValueError:
            return None
        _, found, rest = parts.path.partition(f"{PAGES_PREFIX}/connections/")
        connection, _, kind = rest.rpartition("/")
        given = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if not found or not connection or kind not in ("channel", "channels"):
            return None
        try:
            pipe = PipeName(*(given.get(name, "") for name in ("database", "schema", "pipe")))
        except ConfigurationError:
            return None
        return cls(unquote(connection), pipe, given.get("channel"), given.get("target"))


def _query(kind: str, pipe: PipeName, **more: Any) -> str:
    names = {"database": pipe.database, "schema": pipe.schema, "pipe": pipe.pipe}
    given = {name: value for name, value in more.items() if value is not None}
    return f"{kind}?{urlencode({**names, **given})}"


def _base(hook: SnowpipeHook) -> str:
    return f"{pages_base()}/connections/{quote_url_segment(hook.snowflake_conn_id)}"


# -- What a task leaves of its COPYs for the Snowpipe page: entries of the load ledger, and rejected rows ---

_MOST_ENTRIES = 50


@contextmanager
def leaving_copies(context: Context, hook: SnowpipeHook, loads: Sequence[Any]) -> Iterator[None]:
    """Leave what the load ledger has of a task's COPYs, also where the task fails or is deferred.

    No page reads the ledger: each look would start a warehouse.

    :param loads: have their :class:`CopyRun` as ``copy_run``
    """
    try:
        yield
    finally:
        runs: list[CopyRun] = [one.copy_run for one in loads if one.copy_run is not None]
        if found := [(run, one) for run in runs for one in run.done.values()]:
            rows = list[UnloadedRow]()
            for run, one in found:
                if one.rows_rejected and len(rows) < MOST_UNLOADED:
                    rows += _rejected(hook, run, one)
            entries = [
                {
                    "state": one.state,
                    "files": len(one.files),
                    "rows": one.rows_loaded,
                    "rejected": one.rows_rejected,
                    "at": None if one.loaded_at is None else one.loaded_at.isoformat(),
                    "query_id": one.query_id,
                    "error": one.error and shown_error(one.error[:500]),
                }
                for _, one in found[-_MOST_ENTRIES:]
            ]
            ti, first = context["ti"], found[0][0]
            unloaded = unloaded_value(rows[:MOST_UNLOADED], str(first.stage)) if rows else None
            ti.xcom_push(key=COPIES_KEY, value={"entries": entries, "unloaded": unloaded})
            ti.xcom_push(key=CHANNEL_PAGE_KEY, value=table_page(hook.snowflake_conn_id, *first.ledger.target))


def _rejected(hook: SnowpipeHook, run: CopyRun, entry: Entry) -> list[UnloadedRow]:
    """The first rejected rows of a COPY; where VALIDATE does not know them, that of each file."""
    if entry.query_id is not None and run.copy.expressions is None:
        table = full_name(*run.ledger.target).replace("%", "%%")  # the connector formats what binds values
        statement = f"SELECT * FROM TABLE(VALIDATE({table}, JOB_ID => %s)) LIMIT {MOST_UNLOADED}"  # noqa: S608
        try:
            return [
                UnloadedRow.of(
                    run.stage.relative(str(row["file"]), run.url),
                    row["row_number"] if row["line"] is None else row["line"],
                    f"{shown_error(str(row['error']))} (column {row['column_name']})",
                    row["rejected_record"],
                )
                for row in hook.run_sql(statement, (entry.query_id,))
            ]
        except SnowpipeError as error:
            log.warning("VALIDATE does not show the rejected rows of COPY %s: %s", entry.query_id, error)
    loads = entry.loads(run.stage, run.url).items()
    return [
        UnloadedRow.of(path, one.first_error.line, str(shown_error(str(one.first_error))), None)
        for path, one in loads
        if one.first_error is not None
    ]


# -- Snowsight -------------------------------------------------------------------------------------------

SNOWSIGHT_KEY = "snowsight"
_SNOWFLAKE_DOMAIN = ".snowflakecomputing.com"


class SnowsightLink(_LeftAddress):
    """Where Snowsight shows what the task loads into: a default pipe's table, or the pipe.

    The task leaves the address as the XCom ``snowsight``. There is none for a service that is not
    Snowflake's own, such as the local one, nor for an account that is named by its old locator.
    """

    name = "Snowsight"
    key = SNOWSIGHT_KEY


def snowsight_url(hook: SnowpipeHook) -> str | None:
    """The address in Snowsight of what a hook's pipe loads into, None where there is none."""
    host = urlsplit(hook.account_url()).hostname or ""
    if not host.endswith(_SNOWFLAKE_DOMAIN):
        return None
    return snowsight_address(hook.account(), hook.pipe_name())


def snowsight_address(account: str, pipe: PipeName) -> str | None:
    """The address of a default pipe's table, or of a pipe."""
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


# -- Spark -----------------------------------------------------------------------------------------------

SPARK_UI_KEY = "spark_ui"


class SparkUiLink(_LeftAddress):
    """Where Spark shows the task's application: its own page while it runs, the history server's afterwards.

    The task leaves the address as the XCom ``spark_ui``. There is none where Spark's page is switched off
    (``spark.ui.enabled``), nor after the end where no history server is configured.
    """

    name = "Spark UI"
    key = SPARK_UI_KEY
