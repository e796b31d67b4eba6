"""The load ledger: a table that shows which files COPY has loaded for which piece of work.

COPY has no offset token: Snowflake commits its rows and tells nobody whose they are. So a row of the ledger
stands for each COPY. It is planned before the COPY runs, and marked as loaded in the COPY's own transaction,
together with what COPY reports of each file. If the process dies, the next one reads there what is done.

A transaction marks an entry only in the version, and for the table, that it was planned for. Of two that run
at once, the second one finds another version; it fails, and its rows are rolled back with it.

The entry is marked after the COPY, not before it: Snowflake locks a table from an UPDATE to the end of the
transaction, so that the loads of a schema would otherwise run one after the other.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import format_datetime
from hashlib import blake2b
from typing import Any

from airflow_provider_snowpipe.bulk.copy import LOAD_SKIPPED, CopyOutcome, RunIdentity
from airflow_provider_snowpipe.bulk.staged_files import (
    MOST_NAMES,
    FileLoad,
    StagedFile,
    StageReference,
    staged_at,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SqlError
from airflow_provider_snowpipe.streaming.names import full_name, quote_identifier, string_literal

DEFAULT_NAME = "SNOWPIPE_LOADS"
PLANNED, LOADED, GONE = "planned", "loaded", "gone"
"""Of a COPY; GONE is one whose rows were in a table that was found empty later."""
SUBMITTED, GIVEN_UP = "submitted", "given up"
RunSql = Callable[..., list[dict[str, Any]]]
_NAMESPACE = uuid.UUID("5c0c4a0e-4df5-4f0c-9a53-0c1f0c1f5a11")
_MISSING = (2003, 2043)
_EXISTS = 2002
_NO_PRIVILEGE = 3001
_COLUMNS: Mapping[str, str] = {
    "WORK": "VARCHAR NOT NULL",
    "PART": "NUMBER(38,0) NOT NULL",
    "LAST_PART": "NUMBER(38,0) NOT NULL",
    "VERSION": "NUMBER(38,0) NOT NULL",
    "STATE": "VARCHAR NOT NULL",
    "DAG_ID": "VARCHAR",
    "RUN_ID": "VARCHAR",
    "TASK_ID": "VARCHAR",
    "MAP_INDEX": "VARCHAR",
    "RUN_STARTED": "TIMESTAMP_LTZ",
    "TARGET": "VARCHAR NOT NULL",
    "TARGET_CREATED": "TIMESTAMP_LTZ",
    "LOADER": "VARCHAR",
    "STAGE": "VARCHAR",
    "CHOICE": "VARCHAR",
    "DETAILS": "VARCHAR",
    "STATEMENT": "VARCHAR",
    "FILES": "VARIANT",
    "REPORTS": "ARRAY",
    "ROWS_LOADED": "NUMBER(38,0)",
    "ROWS_REJECTED": "NUMBER(38,0)",
    "QUERY_ID": "VARCHAR",
    "PLANNED_AT": "TIMESTAMP_LTZ",
    "LOADED_AT": "TIMESTAMP_LTZ",
    "ERROR": "VARCHAR",
}
_LONGEST_ERROR = 2_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One COPY statement of a piece of work: what is planned, and what was loaded.

    :param work: the key of the work
    :param part: number of the statement within it, from 1
    :param last: number of the last statement that was planned with it
    :param version: grows with every change of the entry
    :param choice: tells which files the author chose
    :param files: the files that the statement names
    :param reports: the rows of COPY's result for each time that it has run, from the first
    :param run_started: when the run began whose work it is
    :param created: when the table was created that the load is planned for, None where that is not known
    :param error: why the last statement failed
    :param loader: full name of the pipe that is given the files, None for COPY
    :param details: what the planner has to know of the files beside their names
    :param task: DAG, run, task and map index
    :param query_id: that of the COPY which was committed
    """

    work: str
    part: int
    last: int
    version: int = 1
    state: str = PLANNED
    choice: str = ""
    statement: str = ""
    files: tuple[StagedFile, ...] = ()
    reports: tuple[Sequence[Mapping[str, Any]], ...] = ()
    run_started: dt.datetime | None = None
    created: dt.datetime | None = None
    error: str | None = None
    loader: str | None = None
    details: str = ""
    task: str = ""
    rows_loaded: int = 0
    rows_rejected: int = 0
    loaded_at: dt.datetime | None = None
    query_id: str | None = None

    @property
    def is_loaded(self) -> bool:
        """True where its COPY was committed."""
        return self.state == LOADED

    @property
    def request_id(self) -> str:
        """The request id of its statement: a process that derives the same one joins the statement."""
        times = [None if one is None else one.timestamp() for one in (self.run_started, self.created)]
        named = json.dumps([self.work, self.part, self.version, self.statement, *times])
        return str(uuid.uuid5(_NAMESPACE, named))

    def loads(self, stage: StageReference, url: str | None) -> dict[str, FileLoad]:
        """What became of each file: the last report of it in which COPY did not skip it.

        :param url: what an external stage stands for
        """
        found: dict[str, FileLoad] = {}
        for report in self.reports:
            for load in CopyOutcome.read(report, stage, url).loads:
                if load.status != LOAD_SKIPPED or load.path not in found:
                    found[load.path] = load
        return found

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Entry:
        """Read a row of the ledger.

        :param row: its values by the columns' names in lower case
        """
        files = json.loads(row["files"] or "[]")
        return cls(
            str(row["work"]),
            int(row["part"]),
            int(row["last_part"]),
            int(row["version"]),
            str(row["state"]),
            str(row["choice"] or ""),
            str(row["statement"] or ""),
            tuple(
                StagedFile(one["path"], one["mark"], one["size"], staged_at(one.get("staged_at")))
                for one in files
            ),
            tuple(json.loads(row["reports"] or "[]")),
            row["run_started"],
            row["target_created"],
            row["error"],
            row["loader"],
            str(row["details"] or ""),
            "/".join(str(row[name]) for name in ("dag_id", "run_id", "task_id", "map_index") if row[name]),
            int(row["rows_loaded"] or 0),
            int(row["rows_rejected"] or 0),
            row["loaded_at"],
            row["query_id"],
        )


def work_key(identity: RunIdentity, target: tuple[str, str, str], choice: str = "") -> str:
    """The key of a piece of work: the same for every try of a task in a run, also when it was cleared.

    The statement is no part of it: an author who corrects an option still does the same work.

    :param choice: tells the files' choice from another one, where each choice is other work
    """
    named = json.dumps(
        [*identity.names, *target, choice] if identity.work is None else [identity.work, *target]
    )
    return blake2b(named.encode(), digest_size=16).hexdigest()


def ledger_name(given: str | None, target: tuple[str, str, str]) -> tuple[str, str, str]:
    """Database, schema and name of the ledger.

    :param given: ``NAME`` or ``SCHEMA.NAME`` or ``DATABASE.SCHEMA.NAME``, None for the default
    :param target: the table that is loaded, whose database and schema count where none is given
    :raises ConfigurationError: if it has more parts, or an empty one
    """
    parts = (given or DEFAULT_NAME).split(".")
    if len(parts) > 3 or not all(parts):
        raise ConfigurationError(f"ledger_table is {given!r}: give DATABASE.SCHEMA.NAME, or the name alone")
    database, schema, name = (*target[: 3 - len(parts)], *parts)
    return database, schema, name


@dataclass(frozen=True, slots=True)
class TableState:
    """The target as it is now.

    :param created: when it was created, None where it does not show to the role
    :param rows: its rows, as its metadata has them, which row access policies do not change; None for unknown
    :param at: the account's time
    """

    created: dt.datetime | None
    rows: int | None
    at: dt.datetime | None


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ledger of loads into one table.

    :param run: runs SQL in a session
    :param name: database, schema and name of the ledger
    :param target: those of the table that is loaded
    """

    run: RunSql
    name: tuple[str, str, str]
    target: tuple[str, str, str]

    def entries(self, work: str) -> list[Entry]:
        """Read the entries of a piece of work, by their parts; the table is created on first use.

        :raises ConfigurationError: if the role cannot create the ledger that is missing; names the SQL to run
        """
        statement = f"SELECT * FROM {self._table} WHERE WORK = %s ORDER BY PART"  # noqa: S608
        try:
            rows = self.run(statement, (work,))
        except SqlError as error:
            if error.errno not in _MISSING:
                raise
            rows = self._created(statement, work)
        return [Entry.read(row) for row in rows]

    def of_other_tables(self, paths: Sequence[str], stage: str, created: dt.datetime | None) -> list[Entry]:
        """Read loads of files into a table of the target's name that was created at another time.

        :param paths: paths of the files below the stage
        :param stage: the stage in the spelling that :meth:`plan` got
        :param created: when the table of now was created; None where that does not show to the role
        """
        if created is None or not paths:
            return []
        condition = " AND TARGET_CREATED <> %s::TIMESTAMP_LTZ ORDER BY LOADED_AT"
        found = self.of_state(LOADED, stage, condition, created.isoformat())
        asked = frozenset(paths)
        return [one for one in found if any(file.path in asked for file in one.files)]

    def of_state(self, state: str, stage: str, condition: str = "", *values: str | None) -> list[Entry]:
        """Read loads of a stage's files into the target that have a state.

        :param stage: the stage in the spelling that :meth:`plan` got
        :param condition: SQL that follows, with the values that it binds
        """
        rows = self.run(
            f"SELECT * FROM {self._table} WHERE TARGET = %s AND STAGE = %s AND STATE = %s{condition}",  # noqa: S608
            (full_name(*self.target), stage, state, *values),
        )
        return [Entry.read(row) for row in rows]

    def loaded_files(
        self, paths: Sequence[str], stage: str, created: dt.datetime | None
    ) -> frozenset[tuple[str, str]]:
        """Paths and marks of files that have rows in the target, by any work.

        :param paths: paths of the files below the stage
        :param created: when the table of now was created
        """
        named = ""
        if len(paths) <= MOST_NAMES:
            named = f' AND F.VALUE:"path"::VARCHAR IN ({", ".join(["%s"] * len(paths))})'
        rows = self.run(
            'SELECT F.VALUE:"path"::VARCHAR AS PATH, F.VALUE:"mark"::VARCHAR AS MARK '  # noqa: S608
            f"FROM (SELECT FILES, REPORTS FROM {self._table} WHERE TARGET = %s AND STAGE = %s AND STATE = %s "
            f"AND TARGET_CREATED = %s::TIMESTAMP_LTZ AND ROWS_LOADED > 0) AS L, "
            "LATERAL FLATTEN(INPUT => L.FILES) AS F, LATERAL FLATTEN(INPUT => L.REPORTS) AS T, "
            'LATERAL FLATTEN(INPUT => T.VALUE) AS R WHERE R.VALUE:"rows_loaded"::NUMBER > 0 '
            f'AND ENDSWITH(R.VALUE:"file"::VARCHAR, F.VALUE:"path"::VARCHAR){named} GROUP BY 1, 2',
            (full_name(*self.target), stage, LOADED, _text(created), *(paths if named else ())),
        )
        return frozenset((str(row["path"]), str(row["mark"])) for row in rows)

    def of_task(self, identity: RunIdentity) -> list[Entry]:
        """Read loads with rows of a task's run into the target, whatever files were chosen."""
        names = ("DAG_ID", "RUN_ID", "TASK_ID", "MAP_INDEX")[: len(identity.names)]
        own = "".join(f" AND {name} = %s" for name in names)
        rows = self.run(
            f"SELECT * FROM {self._table} WHERE TARGET = %s AND STATE = %s AND ROWS_LOADED > 0{own}",  # noqa: S608
            (full_name(*self.target), LOADED, *identity.names[:4]),
        )
        return [Entry.read(row) for row in rows]

    def planned_by_others(self, work: str, loader: str | None, stage: str, since: dt.datetime) -> list[Entry]:
        """Read loads of a stage's files that other work has planned for another loader, and not begun.

        :param since: plans from before do not count
        """
        condition = " AND WORK <> %s AND LOADER IS DISTINCT FROM %s AND PLANNED_AT > %s::TIMESTAMP_LTZ"
        return self.of_state(PLANNED, stage, condition, work, loader, since.isoformat())

    def plan(self, entry: Entry, identity: RunIdentity, stage: str) -> bool:
        """Write an entry that nobody else has written; False where somebody has."""
        dag_id, run_id, task_id, map_index = (*identity.names, *[None] * 4)[:4]
        values: dict[str, tuple[str, str | None]] = {
            "WORK": ("%s", entry.work),
            "PART": ("%s::NUMBER", str(entry.part)),
            "LAST_PART": ("%s::NUMBER", str(entry.last)),
            "STATE": ("%s", entry.state),
            "DAG_ID": ("%s", dag_id),
            "RUN_ID": ("%s", run_id),
            "TASK_ID": ("%s", task_id),
            "MAP_INDEX": ("%s", map_index),
            "RUN_STARTED": ("%s::TIMESTAMP_LTZ", identity.since.isoformat()),
            "TARGET": ("%s", full_name(*self.target)),
            "TARGET_CREATED": ("%s::TIMESTAMP_LTZ", _text(entry.created)),
            "LOADER": ("%s", entry.loader),
            "STAGE": ("%s", stage),
            "CHOICE": ("%s", entry.choice),
            "DETAILS": ("%s", entry.details),
            "STATEMENT": ("%s", entry.statement),
            "FILES": ("PARSE_JSON(%s)", _written(entry.files)),
        }
        new = ", ".join(f"{sql} AS {name}" for name, (sql, _) in values.items())
        names = [*values, "VERSION", "PLANNED_AT"]
        given = [*(f"N.{name}" for name in values), "1", "CURRENT_TIMESTAMP()"]
        (row,) = self.run(
            f"MERGE INTO {self._table} AS L USING (SELECT {new}) AS N "  # noqa: S608
            "ON L.WORK = N.WORK AND L.PART = N.PART "
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join(given)})",
            [value for _, value in values.values()],
        )
        return int(next(iter(row.values()))) == 1

    def change(self, entry: Entry, new: Entry) -> bool:
        """Replace an entry, unless somebody else has changed it; False where somebody has.

        :param new: the entry with its new state, statement, files and error; it gets the next version
        """
        (row,) = self.run(
            f"UPDATE {self._table} SET VERSION = VERSION + 1, STATE = %s, CHOICE = %s, "  # noqa: S608
            "STATEMENT = %s, FILES = PARSE_JSON(%s), TARGET_CREATED = %s::TIMESTAMP_LTZ, ERROR = %s "
            "WHERE WORK = %s AND PART = %s AND VERSION = %s",
            (
                new.state,
                new.choice,
                new.statement,
                _written(new.files),
                _text(new.created),
                None if new.error is None else new.error[:_LONGEST_ERROR],
                entry.work,
                str(entry.part),
                str(entry.version),
            ),
        )
        return int(next(iter(row.values()))) == 1

    def settle(self, entry: Entry, rows: int, rejected: int) -> None:
        """Write that a pipe has loaded the files of an entry.

        :param rows: that are in the table
        :param rejected: that are not
        """
        self.run(
            f"UPDATE {self._table} SET VERSION = VERSION + 1, STATE = %s, ROWS_LOADED = %s::NUMBER, "  # noqa: S608
            "ROWS_REJECTED = %s::NUMBER, LOADED_AT = CURRENT_TIMESTAMP() WHERE WORK = %s AND PART = %s",
            (LOADED, str(rows), str(rejected), entry.work, str(entry.part)),
        )

    def retire(self, work: str, until: dt.datetime) -> None:
        """Take the entries of a run that was deleted out of the work of a new one of the same id.

        What was planned and not loaded is given up.

        :param until: when the new run began
        """
        ended = until.isoformat()
        self.run(
            f"UPDATE {self._table} SET WORK = %s, "  # noqa: S608
            f"STATE = IFF(STATE = '{PLANNED}', '{GIVEN_UP}', STATE) "
            "WHERE WORK = %s AND RUN_STARTED < %s::TIMESTAMP_LTZ",
            (f"{work} until {ended}", work, ended),
        )

    def transaction(self, entry: Entry, *, loads_nothing: bool = False) -> list[str]:
        """The statements that run an entry's COPY and mark it as loaded, to be sent as one request.

        :param loads_nothing: True fails the request where COPY loads a row

        Values are literals: a request of several statements binds none (page "Submitting a request to execute
        SQL statements"). The SELECT divides by zero where the UPDATE has found another version, or another
        table of the target's name, which fails the request before its COMMIT.
        """
        ledger, work = full_name(*self.name), string_literal(entry.work)
        only = " AND COALESCE(R.GOOD, 0) = 0" if loads_nothing else ""
        database, schema, table = self.target
        return [
            "BEGIN",
            entry.statement,
            f"UPDATE {ledger} SET STATE = '{LOADED}', VERSION = VERSION + 1, ERROR = NULL, "  # noqa: S608
            "LOADED_AT = CURRENT_TIMESTAMP(), QUERY_ID = LAST_QUERY_ID(), "
            "REPORTS = ARRAY_APPEND(COALESCE(REPORTS, ARRAY_CONSTRUCT()), R.REPORT), "
            "ROWS_LOADED = COALESCE(NULLIF(R.GOOD, 0), ROWS_LOADED, 0), "
            "ROWS_REJECTED = COALESCE(NULLIF(R.BAD, 0), ROWS_REJECTED, 0) "
            'FROM (SELECT ARRAY_AGG(O) AS REPORT, SUM(O:"rows_loaded"::NUMBER) AS GOOD, '
            'SUM(O:"errors_seen"::NUMBER) AS BAD, '
            f"(SELECT MAX(CREATED) FROM {quote_identifier(database)}.INFORMATION_SCHEMA.TABLES "
            f"WHERE TABLE_SCHEMA = {string_literal(schema)} AND TABLE_NAME = {string_literal(table)}) AS "
            "MADE FROM (SELECT OBJECT_CONSTRUCT(*) AS O FROM TABLE(RESULT_SCAN(LAST_QUERY_ID())))) AS R "
            f"WHERE WORK = {work} AND PART = {entry.part} AND VERSION = {entry.version} "
            f"AND TARGET_CREATED IS NOT DISTINCT FROM R.MADE{only}",
            'SELECT 1 / "number of rows updated" AS OWN FROM TABLE(RESULT_SCAN(LAST_QUERY_ID()))',
            "COMMIT",
        ]

    def table_and_loads(self) -> tuple[TableState, dict[str, int]]:
        """Read the target, and the rows of the loads into it that are not gone, by COPY's query id.

        The loads are read first: what is committed between the two makes rows more, never fewer, so that a
        table cannot look as if it had lost them.
        """
        rows = self.run(
            f"SELECT QUERY_ID, ROWS_LOADED, TARGET_CREATED FROM {self._table} "  # noqa: S608
            "WHERE TARGET = %s AND STATE = %s AND ROWS_LOADED > 0",
            (full_name(*self.target), LOADED),
        )
        (table,) = self.run(*age_of_table(self.target))
        found = None if table["found"] is None else int(table["found"])
        now = TableState(table["created"], found, table["account_now"])
        own = (row for row in rows if now.created is not None and row["target_created"] == now.created)
        return now, {str(row["query_id"]): int(row["rows_loaded"]) for row in own}

    def mark_gone(self, loads: Iterable[str]) -> None:
        """Mark loads as gone: the table has no rows.

        :param loads: their query ids
        """
        ids = list(loads)
        for start in range(0, len(ids), MOST_NAMES):
            some = ids[start : start + MOST_NAMES]
            self.run(
                f"UPDATE {self._table} SET STATE = %s, VERSION = VERSION + 1 WHERE TARGET = %s "  # noqa: S608
                f"AND STATE = %s AND QUERY_ID IN ({', '.join(['%s'] * len(some))})",
                (GONE, full_name(*self.target), LOADED, *some),
            )

    @property
    def _table(self) -> str:
        """The ledger's name in a statement that binds values."""
        return _bound(full_name(*self.name))

    def _created(self, statement: str, work: str) -> list[dict[str, Any]]:
        """Create the table, and read from it."""
        name = full_name(*self.name)
        columns = ", ".join(f"{column} {kind}" for column, kind in _COLUMNS.items())
        create = f"CREATE TABLE IF NOT EXISTS {name} ({columns})"
        hidden: tuple[int, ...] = (_NO_PRIVILEGE,)
        grant = f"CREATE TABLE ON SCHEMA {full_name(*self.name[:2])}"
        try:
            self.run(create)
            grant, hidden = f"SELECT, INSERT, UPDATE ON TABLE {name}", (_NO_PRIVILEGE, *_MISSING)
            return self.run(statement, (work,))
        except SqlError as error:
            if error.errno == _EXISTS:  # another session has created it meanwhile
                return self.run(statement, (work,))
            if error.errno not in hidden:
                raise
            raise ConfigurationError(
                f"COPY into {self.target[-1]} needs the load ledger {'.'.join(self.name)}, and the role may "
                f"not use it: GRANT {grant} TO ROLE …; or have its owner create it, with SELECT, INSERT and "
                f"UPDATE for the role: {create}; or name another one, ledger_table='DATABASE.SCHEMA.NAME'"
            ) from error


def age_of_table(table: tuple[str, str, str]) -> tuple[str, list[str]]:
    """The statement that asks when a table was made and what time it is, and the values that it binds.

    Its one row has ``created`` and ``found``, the number of rows, as metadata has it, which row access
    policies do not change, NULL for a table that the role does not see; and ``account_now``.
    """
    database = quote_identifier(table[0]).replace("%", "%%")  # the connector formats what binds values
    return (
        "SELECT MAX(CREATED) AS CREATED, MAX(ROW_COUNT) AS FOUND, CURRENT_TIMESTAMP() AS ACCOUNT_NOW "  # noqa: S608
        f"FROM {database}.INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        [table[1], table[2]],
    )


def _bound(name: str) -> str:
    """A name in a statement that binds values: the connector formats it."""
    return name.replace("%", "%%")


def _text(time: dt.datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def _written(files: Sequence[StagedFile]) -> str:
    return json.dumps(
        [
            {"path": one.path, "mark": one.mark, "size": one.size, "staged_at": _rfc(one.staged_at)}
            for one in files
        ]
    )


def _rfc(time: dt.datetime | None) -> str | None:
    return None if time is None else format_datetime(time)
