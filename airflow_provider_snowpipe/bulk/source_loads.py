"""The loads of a source of files by COPY and pipes, as ledgers have them, and how such loads are ended.

The source log and Airflow's record name the ledgers. Who loads the files of a lost log again ends its loads
first: an open COPY is given up, so that it never commits, and a pipe has to be through with its files.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_snowpipe.bulk.ledger import Ledger, LedgerName, table_state
from airflow_provider_snowpipe.bulk.ledger_entry import GIVEN_UP, LOADED, Entry
from airflow_provider_snowpipe.bulk.load_history import REMEMBERED
from airflow_provider_snowpipe.bulk.other_loaders import Account
from airflow_provider_snowpipe.bulk.staged_files import FINAL, LOAD_FAILED, FileLoad
from airflow_provider_snowpipe.bulk.staged_files import LOADED as FILE_LOADED
from airflow_provider_snowpipe.streaming.errors import FilesGivenTwiceError


@dataclass(frozen=True, slots=True)
class SourceLoads:
    """What COPY and pipes were given of a source of files.

    :param path: the source's path
    """

    account: Account
    table: str
    path: str
    ledgers: Sequence[LedgerName]

    def each(self) -> Iterator[Ledger]:
        """Sign in to one ledger after the other."""
        seen = set[LedgerName]()
        for name in self.ledgers:
            if name not in seen:
                with self.account.load_ledger(self.table, name) as ledger:
                    if ledger.name not in seen:
                        seen.add(ledger.name)
                        yield ledger

    def logs(self, log: str, known: Mapping[str, int]) -> tuple[tuple[str, ...], dict[str, int]]:
        """Read which source logs have given files.

        :param log: the id of the log that is there
        :param known: the logs that are known, with the last entry of each
        :return: the first ledger's name; and the last entry of each log
        """
        names, last = list[tuple[str, ...]](), dict(known)
        for ledger in self.each():
            names.append(ledger.name)
            found = ledger.logs(self.path, log).items()
            last |= {one: max(last.get(one, 0), number) for one, number in found}
        return names[0], last

    def end(self, log: str | None = None) -> list[tuple[str, Entry, frozenset[int], dt.datetime | None]]:
        """End the loads of all source logs but one.

        :param log: the id of that one, empty for none, where files are loaded again: what a pipe was given
            over 14 days ago is over then. None where they are not
        :return: of each the log, the load, the numbers of the units that it has not loaded, and when the
            table was created that is there
        :raises FilesGivenTwiceError: if a pipe may still load a file
        """
        ended, since = [], None if log is None else dt.datetime.now(dt.UTC) - REMEMBERED
        for ledger in self.each():
            if not (found := {one for one, _ in ledger.of_source(self.path)} - {log}):
                continue
            ledger.give_up("SOURCE = %s AND SOURCE_LOG <> %s", self.path, log or "")
            created = table_state(ledger.run, ledger.target).created
            for one, entry in ledger.of_source(self.path):
                is_over = entry.loader and since and entry.planned_at and entry.planned_at < since
                if one in found and not is_over:
                    ended.append((one, entry, self._left(ledger, entry), created))
        return ended

    def _left(self, ledger: Ledger, entry: Entry) -> frozenset[int]:
        paths = [_of_unit(one.path) for one in entry.files]
        left = set[str]()
        if entry.loader is None and entry.state != LOADED:
            left.update(paths)  # planned since, by a task that finds its log gone
        elif entry.state != LOADED:
            loads = loads_by_pipe(self.account, self.table, ledger, entry, paths)
            left.update(path for path in paths if not loads[path].rows_loaded)
        else:
            for row in (row for report in entry.reports for row in report if row.get("file")):
                is_failed = row["status"] == LOAD_FAILED
                (left.add if is_failed else left.discard)(_of_unit(str(row["file"])))
        return frozenset(int(path.split("/")[1]) for path in left)


def _of_unit(path: str) -> str:
    """The end of a path, which names log and unit; a pipe may load from elsewhere by now."""
    return "/".join(path.split("/")[-3:])


def loads_by_pipe(
    account: Account, table: str, ledger: Ledger, entry: Entry, paths: Sequence[str]
) -> dict[str, FileLoad]:
    """What a pipe has made of the files that it was given, which it is through with.

    :param paths: the ends of their paths: log, unit and name
    :raises FilesGivenTwiceError: if it may still load one
    """
    if entry.state == GIVEN_UP:
        return {}
    if entry.state == LOADED:
        return {path: FileLoad(path, "", FILE_LOADED) for path in paths}
    pipe = str(entry.loader)
    name = pipe.removeprefix(f"{'.'.join(ledger.target[:2])}.")
    loads = account.loads_of(table, [one.path for one in entry.files], name)
    ended = {_of_unit(one.path): one for one in loads if one.status in FINAL}
    if unknown := tuple(path for path in paths if path not in ended):
        raise FilesGivenTwiceError(
            f"pipe {pipe} was given {len(unknown):,} files, such as {unknown[0]!r}, that it may still load: "
            "a file of that load, the pipe or the source log has changed or is gone, or it began over 14 "
            "days ago, which nobody remembers. Nothing was loaded. Run again when the pipe has loaded them; "
            f"or set STATE to '{LOADED}' where WORK is {entry.work!r} in the ledger "
            f"{'.'.join(ledger.name)} if their rows are in the table, to '{GIVEN_UP}' if none is",
            files=unknown,
            may_pass=True,
        )
    return {path: ended[path] for path in paths}
