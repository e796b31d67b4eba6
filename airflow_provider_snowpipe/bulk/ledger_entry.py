"""The rows of the load ledger: what is planned, what was loaded, and whose work it is."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from typing import Any

from airflow_provider_snowpipe.bulk.copy import LOAD_SKIPPED, RunIdentity
from airflow_provider_snowpipe.bulk.staged_files import (
    COPY_RESULT,
    LOAD_FAILED,
    FileLoad,
    StagedFile,
    StageReference,
    staged_at,
)
from airflow_provider_snowpipe.streaming.errors import SqlError

PLANNED, LOADED, GONE = "planned", "loaded", "gone"
"""Of a COPY; GONE is one whose rows were in a table that was found empty later."""
SUBMITTED, STAGED, GIVEN_UP = "submitted", "staged", "given up"
_NAMESPACE = uuid.UUID("5c0c4a0e-4df5-4f0c-9a53-0c1f0c1f5a11")


class GivenUpError(SqlError):
    """Another task has given a load of files up, and may load them another way; another try finds how."""


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
    :param target_rows: the rows that the table had then
    :param error: why the last statement failed
    :param loader: full name of the pipe that is given the files, None for COPY
    :param details: what the planner has to know of the files beside their names
    :param names: DAG, run, task and map index of the task that has planned it
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
    names: tuple[str, ...] = ()
    rows_loaded: int = 0
    rows_rejected: int = 0
    loaded_at: dt.datetime | None = None
    query_id: str | None = None
    target_rows: int | None = None
    planned_at: dt.datetime | None = None

    @property
    def is_loaded(self) -> bool:
        """True where its COPY was committed."""
        return self.state == LOADED

    def request_id(self, *, loads_nothing: bool = False) -> str:
        """The request id of its transaction: a process that derives the same one joins the transaction.

        :param loads_nothing: as of :meth:`Ledger.transaction`
        """
        times = [None if one is None else one.timestamp() for one in (self.run_started, self.created)]
        what = [self.work, self.part, self.version, self.statement, loads_nothing]
        named = json.dumps([*what, *self.names, *times])
        return str(uuid.uuid5(_NAMESPACE, named))

    def loads(self, stage: StageReference, url: str | None) -> dict[str, FileLoad]:
        """What became of each file: the last report of it in which COPY did not skip it.

        :param url: what an external stage stands for
        """
        found: dict[str, FileLoad] = {}
        for row in chain.from_iterable(self.reports):
            if row.get("file") is None:
                continue  # a COPY that found nothing to do answers with one row that has a status and no file
            load = FileLoad.read(row, COPY_RESULT)
            load = replace(load, path=stage.relative(load.path, url), location=stage.name)
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
            tuple(str(row[name]) for name in ("dag_id", "run_id", "task_id", "map_index") if row[name]),
            int(row["rows_loaded"] or 0),
            int(row["rows_rejected"] or 0),
            row["loaded_at"],
            row["query_id"],
            None if row["target_rows"] is None else int(row["target_rows"]),
            row["planned_at"],
        )


def files_of(entries: Iterable[Entry]) -> dict[str, StagedFile]:
    """The files of entries that were not given up, by their paths."""
    return {file.path: file for one in entries if one.state != GIVEN_UP for file in one.files}


def is_done(load: FileLoad | None, *, forced: bool) -> bool:
    """True for a file that needs no other COPY; one that COPY has skipped needs it, but with FORCE."""
    return forced if load is None or load.status == LOAD_SKIPPED else load.status != LOAD_FAILED


def work_key(identity: RunIdentity, target: tuple[str, str, str], choice: str = "") -> str:
    """The key of a piece of work: the same for every try of a task in a run, also when it was cleared.

    The statement is not a part of it: an author who corrects an option still does the same work.

    :param choice: tells the files' choice from another one, where each choice is other work
    """
    named = json.dumps(
        [*identity.names, *target, choice] if identity.work is None else [identity.work, *target]
    )
    return blake2b(named.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class TableState:
    """The target as it is now.

    :param created: when it was created, None where it does not show to the role
    :param rows: its rows, as its metadata has them, which row access policies do not change; None for unknown
    :param at: the account's time
    """

    created: dt.datetime | None
    rows: int | None
    at: dt.datetime


@dataclass(frozen=True, slots=True)
class LoadOfTable:
    """A load that COPY has committed.

    :param at: by the account's time, before the commit
    """

    query_id: str
    rows: int
    at: dt.datetime
