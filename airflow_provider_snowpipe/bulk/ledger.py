"""The load ledger: a table that shows which files COPY has loaded for which piece of work.

COPY has no offset token: Snowflake commits its rows and does not say for whom. So a row of the ledger
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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import format_datetime
from typing import Any, Self

from airflow_provider_snowpipe.bulk.copy import RunIdentity
from airflow_provider_snowpipe.bulk.ledger_entry import (
    GIVEN_UP,
    GONE,
    LOADED,
    PLANNED,
    SUBMITTED,
    Entry,
    LoadOfTable,
    TableState,
)
from airflow_provider_snowpipe.bulk.staged_files import MOST_NAMES, StagedFile
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, FilesGivenTwiceError, SqlError
from airflow_provider_snowpipe.streaming.names import full_name, quote_identifier, string_literal

DEFAULT_NAME = "SNOWPIPE_LOADS"
LedgerName = str | tuple[str, ...] | None
RunSql = Callable[..., Sequence[Mapping[str, Any]]]
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
    "TARGET_ROWS": "NUMBER(38,0)",
    "LOADER": "VARCHAR",
    "SOURCE": "VARCHAR",
    "SOURCE_LOG": "VARCHAR",
    "SOURCE_ENTRY": "NUMBER(38,0)",
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
FORCED = "load them by SnowpipeCopyOperator or SnowpipeIngestFilesOperator with force=True"
"""What to do about files of another loader; other operators have no such argument."""
_MOST_NAMED = 3
_COUNTS_FOR = dt.timedelta(days=7)
"""No statement runs for longer (page "Parameters", STATEMENT_TIMEOUT_IN_SECONDS)."""


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
    _table: str = field(repr=False)
    """The ledger's name in a statement that binds values, which the connector formats."""
    _target: str = field(repr=False)

    @classmethod
    def of(cls, run: RunSql, given: LedgerName, target: tuple[str, str, str]) -> Self:
        """The ledger of loads into a table.

        :param given: ``NAME`` or ``SCHEMA.NAME`` or ``DATABASE.SCHEMA.NAME`` of the ledger, or these parts;
            None for the default. Database and schema of the table count where none is given
        :raises ConfigurationError: if it has more parts, or an empty one
        """
        parts = given if isinstance(given, tuple) else tuple((given or DEFAULT_NAME).split("."))
        if len(parts) > 3 or not all(parts):
            raise ConfigurationError(
                f"ledger_table is {given!r}: give DATABASE.SCHEMA.NAME, or the name alone"
            )
        database, schema, name = (*target[: 3 - len(parts)], *parts)
        own = full_name(database, schema, name).replace("%", "%%")
        return cls(run, (database, schema, name), target, own, full_name(*target))

    def entries(self, work: str) -> list[Entry]:
        """Read the entries of a piece of work, by their parts; the table is created on first use.

        :raises SqlError: if the role cannot create the ledger that is missing; names the SQL to run
        """
        statement = f"SELECT * FROM {self._table} WHERE WORK = %s ORDER BY PART"  # noqa: S608
        try:
            rows = self.run(statement, (work,))
        except SqlError as error:
            rows = self._made(error, statement, (work,))
        return [Entry.read(row) for row in rows]

    def logs(self, source: str, log: str) -> dict[str, int]:
        """Read which source logs have given files of a source to COPY or pipes, and the last entry of each.

        :param source: the source's path
        :param log: the id of the log that is there; its entries count wherever the source was
        """
        columns = "SOURCE_LOG, MAX(SOURCE_ENTRY) AS LAST_ENTRY"
        rows = self._of_source(columns, "GROUP BY SOURCE_LOG", source, log)
        return {str(row["source_log"]): int(row["last_entry"]) for row in rows}

    def replace_table(self, log: str, state: str) -> None:
        """Write that loads by a source log into a table of before are in the present one, or are gone.

        :param state: ``LOADED`` or ``GONE``
        """
        now = table_state(self.run, self.target).created
        at = None if now is None else now.isoformat()
        self.run(
            f"UPDATE {self._table} SET VERSION = VERSION + 1, STATE = %s, TARGET_CREATED = %s::TIMESTAMP_LTZ "  # noqa: S608
            "WHERE TARGET = %s AND SOURCE_LOG = %s AND STATE = %s AND TARGET_CREATED <> %s::TIMESTAMP_LTZ",
            (state, at, self._target, log, LOADED, at),
        )

    def of_source(self, source: str) -> list[tuple[str, Entry]]:
        """Read the loads of a source by COPY and pipes, in their order, with the ids of its source logs."""
        rows = self._of_source("*", "ORDER BY PLANNED_AT, SOURCE_ENTRY, PART", source, "")
        return [(str(row["source_log"]), Entry.read(row)) for row in rows]

    def _of_source(self, columns: str, end: str, *values: str) -> Sequence[Mapping[str, Any]]:
        statement = (
            f"SELECT {columns} FROM {self._table} WHERE TARGET = %s AND (SOURCE = %s OR SOURCE_LOG = %s) "  # noqa: S608
            f"AND STATE IN ('{PLANNED}', '{LOADED}', '{SUBMITTED}') {end}"
        )
        try:
            return self.run(statement, (self._target, *values))
        except SqlError as error:
            return self._made(error, statement, (self._target, *values))

    def loaded_files(
        self, paths: Sequence[str], stage: str, state: str = LOADED, since: dt.datetime | None = None
    ) -> frozenset[tuple[str, str, dt.datetime | None]]:
        """Read which files' rows COPY has put into a table of the target's name, for any work.

        :param paths: paths of the files below the stage; of very many, other files are read as well
        :param stage: the stage in the spelling that :meth:`plan` got
        :param state: of the loads
        :param since: only loads from then on
        :return: path and mark of each, and when the table was created
        """
        named = begun = ""
        file = 'R.VALUE:"file"::VARCHAR'
        begin = str(len(stage) + 2) if "://" in stage else f"POSITION('/', {file}) + 1"
        if stage.rpartition(".")[2].startswith(("%", "~")):
            begin = "1"  # the stage of a table or a user has no name there
        if len(paths) <= MOST_NAMES:
            named = f' AND F.VALUE:"path"::VARCHAR IN ({", ".join(["%s"] * len(paths))})'
        if since is not None:
            begun = " AND LOADED_AT >= %s::TIMESTAMP_LTZ"
        rows = self.run(
            'SELECT F.VALUE:"path"::VARCHAR AS PATH, F.VALUE:"mark"::VARCHAR AS MARK, L.TARGET_CREATED '  # noqa: S608
            f"FROM (SELECT FILES, REPORTS, TARGET_CREATED FROM {self._table} WHERE TARGET = %s "
            f"AND STAGE = %s AND STATE = %s AND ROWS_LOADED > 0{begun}) AS L, "
            "LATERAL FLATTEN(INPUT => L.FILES) AS F, LATERAL FLATTEN(INPUT => L.REPORTS) AS T, "
            'LATERAL FLATTEN(INPUT => T.VALUE) AS R WHERE R.VALUE:"rows_loaded"::NUMBER > 0 '
            f'AND SUBSTR({file}, {begin}) = F.VALUE:"path"::VARCHAR{named} GROUP BY 1, 2, 3',
            (self._target, stage, state, *([since.isoformat()] if since else []), *(paths if named else ())),
        )
        return frozenset((str(row["path"]), str(row["mark"]), row["target_created"]) for row in rows)

    def given_files(self, paths: Sequence[str], stage: str) -> frozenset[tuple[str, str, str | None]]:
        """Read which content of files was given to a loader, for any work.

        :param paths: paths of the files below the stage; of very many, other files are read as well
        :param stage: the stage in the spelling that :meth:`plan` got
        :return: path and mark of each, and the full name of the pipe, None for COPY
        """
        named = ""
        if len(paths) <= MOST_NAMES:
            named = f' WHERE F.VALUE:"path"::VARCHAR IN ({", ".join(["%s"] * len(paths))})'
        rows = self.run(
            'SELECT F.VALUE:"path"::VARCHAR AS PATH, F.VALUE:"mark"::VARCHAR AS MARK, L.LOADER '  # noqa: S608
            f"FROM (SELECT FILES, LOADER FROM {self._table} WHERE TARGET = %s AND STAGE = %s "
            f"AND STATE IN ('{LOADED}', '{SUBMITTED}')) AS L, LATERAL FLATTEN(INPUT => L.FILES) AS F{named}",
            (self._target, stage, *(paths if named else ())),
        )
        return frozenset((str(row["path"]), str(row["mark"]), row["loader"]) for row in rows)

    def of_task(self, identity: RunIdentity) -> list[Entry]:
        """Read loads with rows of a task's run into the target, whatever files were chosen."""
        names = ("DAG_ID", "RUN_ID", "TASK_ID", "MAP_INDEX")[: len(identity.names)]
        own = "".join(f" AND {name} = %s" for name in names)
        rows = self.run(
            f"SELECT * FROM {self._table} WHERE TARGET = %s AND STATE = %s AND ROWS_LOADED > 0{own}",  # noqa: S608
            (self._target, LOADED, *identity.names[:4]),
        )
        return [Entry.read(row) for row in rows]

    def refuse_planned_by_others(
        self, work: str, loader: str | None, files: Collection[str], stage: str
    ) -> None:
        """Refuse files that another task is about to give to another loader.

        COPY and pipes do not share their memory of files, and asking what the other has done does not show
        what it is about to do. So each plans its load, and then reads what others have planned: of two that
        begin at once, one at least finds the other. Loads by the same loader need no check: it skips files.

        :param work: the key of the task's own work
        :param loader: full name of the pipe, None for COPY
        :param files: their paths below the stage
        :param stage: the stage in the spelling that :meth:`plan` got
        :raises FilesGivenTwiceError: if there is such a load; a retry finds what has become of it
        """
        since = dt.datetime.now(dt.UTC) - _COUNTS_FOR
        rows = self.run(
            f"SELECT * FROM {self._table} WHERE TARGET = %s AND STAGE = %s AND STATE = %s "  # noqa: S608
            "AND WORK <> %s AND LOADER IS DISTINCT FROM %s AND PLANNED_AT > %s::TIMESTAMP_LTZ",
            (self._target, stage, PLANNED, work, loader, since.isoformat()),
        )
        for other in map(Entry.read, rows):
            both = tuple(sorted(set(files).intersection(one.path for one in other.files)))
            if not both:
                continue
            shown = ", ".join(map(repr, both[:_MOST_NAMED])) + (" …" if len(both) > _MOST_NAMED else "")
            by, own = ("COPY" if one is None else f"pipe {one}" for one in (other.loader, loader))
            raise FilesGivenTwiceError(
                f"task {'/'.join(other.names)} (DAG, run, task, map index) has begun to load "
                f"{len(both):,} of {len(files):,} files by {by}: {shown}. {own} would put the same rows into "
                "the table: take the files from one of the two. If that task has died, clear it, so that it "
                f"ends its load; or delete WORK = {other.work!r} of the ledger {'.'.join(self.name)} when no "
                f"statement of it runs; or {FORCED}",
                files=both,
                may_pass=True,
            )

    def plan(self, entry: Entry, identity: RunIdentity, stage: str) -> bool:
        """Write an entry that nobody else has written; False where somebody has."""
        dag_id, run_id, task_id, map_index = (*identity.names, *[None] * 4)[:4]
        source, log, number = identity.entry or (None, None, None)
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
            "TARGET": ("%s", self._target),
            "TARGET_CREATED": ("%s::TIMESTAMP_LTZ", entry.created.isoformat() if entry.created else None),
            "TARGET_ROWS": ("%s::NUMBER", None if entry.target_rows is None else str(entry.target_rows)),
            "LOADER": ("%s", entry.loader),
            "SOURCE": ("%s", source),
            "SOURCE_LOG": ("%s", log),
            "SOURCE_ENTRY": ("%s::NUMBER", None if number is None else str(number)),
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
            "STATEMENT = %s, DETAILS = %s, FILES = PARSE_JSON(%s), TARGET_CREATED = %s::TIMESTAMP_LTZ, "
            "TARGET_ROWS = %s::NUMBER, PLANNED_AT = CURRENT_TIMESTAMP(), ERROR = %s "
            "WHERE WORK = %s AND PART = %s AND VERSION = %s",
            (
                new.state,
                new.choice,
                new.statement,
                new.details,
                _written(new.files),
                new.created.isoformat() if new.created else None,
                None if new.target_rows is None else str(new.target_rows),
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

    def table_and_loads(self) -> tuple[TableState, list[LoadOfTable]]:
        """Read the target, and the loads into it that are not gone.

        The loads are read first: what is committed between the two makes rows more, never fewer, so that a
        table cannot look as if it had lost them.
        """
        rows = self.run(
            f"SELECT QUERY_ID, ROWS_LOADED, LOADED_AT, TARGET_CREATED FROM {self._table} "  # noqa: S608
            "WHERE TARGET = %s AND STATE = %s AND ROWS_LOADED > 0",
            (self._target, LOADED),
        )
        now = table_state(self.run, self.target)
        own = (row for row in rows if now.created is not None and row["target_created"] == now.created)
        return now, [
            LoadOfTable(str(row["query_id"]), int(row["rows_loaded"]), row["loaded_at"]) for row in own
        ]

    def give_up(self, which: str, *values: str) -> None:
        """Keep each COPY from being committed that is not committed yet, whoever runs it.

        :param which: the condition, which binds values
        """
        self.run(
            f"UPDATE {self._table} SET VERSION = VERSION + 1, STATE = %s "  # noqa: S608
            f"WHERE TARGET = %s AND STATE = %s AND LOADER IS NULL AND {which}",
            (GIVEN_UP, self._target, PLANNED, *values),
        )

    def mark_gone(self, loads: Iterable[LoadOfTable]) -> None:
        """Mark loads as gone: the table has no rows."""
        ids = [one.query_id for one in loads]
        for start in range(0, len(ids), MOST_NAMES):
            some = ids[start : start + MOST_NAMES]
            self.run(
                f"UPDATE {self._table} SET STATE = %s, VERSION = VERSION + 1 WHERE TARGET = %s "  # noqa: S608
                f"AND STATE = %s AND QUERY_ID IN ({', '.join(['%s'] * len(some))})",
                (GONE, self._target, LOADED, *some),
            )

    def _made(self, error: SqlError, statement: str, values: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
        """Create the table where there is none, and ask again.

        :param error: what the statement has failed with
        """
        name = full_name(*self.name)
        columns = ", ".join(f"{column} {kind}" for column, kind in _COLUMNS.items())
        create = f"CREATE TABLE IF NOT EXISTS {name} ({columns})"
        refused: tuple[int, ...] = (_NO_PRIVILEGE, *_MISSING)
        grant = use = f"SELECT, INSERT, UPDATE ON TABLE {name}"
        try:
            if error.errno not in _MISSING:
                raise error
            grant, refused = f"CREATE TABLE ON SCHEMA {full_name(*self.name[:2])}", (_NO_PRIVILEGE,)
            try:
                self.run(create)
            except SqlError as other:
                if other.errno != _EXISTS:  # another session has created it meanwhile
                    raise
            grant, refused = use, (_NO_PRIVILEGE, *_MISSING)
            return self.run(statement, values)
        except SqlError as other:
            if other.errno not in refused:
                raise
            raise SqlError(
                f"the role may not use the load ledger {'.'.join(self.name)} of table {self.target[-1]!r}: "
                f"GRANT {grant} TO ROLE …; or have its owner create it, with SELECT, INSERT and UPDATE for "
                f"the role: {create}; or name another one for new loads, ledger_table='DATABASE.SCHEMA.NAME'",
                errno=other.errno,
            ) from error


def table_state(run: RunSql, table: tuple[str, str, str]) -> TableState:
    """Read when a table was made, and its rows, as metadata has them; None for what does not show."""
    database = quote_identifier(table[0]).replace("%", "%%")  # the connector formats what binds values
    (found,) = run(
        "SELECT MAX(CREATED) AS CREATED, MAX(ROW_COUNT) AS FOUND, CURRENT_TIMESTAMP() AS ACCOUNT_NOW "  # noqa: S608
        f"FROM {database}.INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        [table[1], table[2]],
    )
    rows = None if found["found"] is None else int(found["found"])
    return TableState(found["created"], rows, found["account_now"])


def _written(files: Sequence[StagedFile]) -> str:
    return json.dumps(
        [
            {
                "path": one.path,
                "mark": one.mark,
                "size": one.size,
                "staged_at": one.staged_at and format_datetime(one.staged_at),
            }
            for one in files
        ]
    )
