"""The SQL side of an account in this process: stages, COPY, load history, file pipes, offset tokens.

It answers where bulk loading leaves the process: statements of a session, and requests to the SQL API and to
a pipe's REST API. Every call is listed. A fault strikes a call before it is done, or after it, when its
answer is lost; or somebody else does something there. A record of a file is a line, and one with the word
"bad" does not fit the table.
"""

import datetime as dt
import gzip
import hashlib
import json
import operator
import re
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_snowpipe.bulk.staged_files import StageReference
from airflow_provider_snowpipe.streaming.http import Answer

DATABASE, SCHEMA, TABLE = "LOCAL", "PUBLIC", "T"
URL = "https://account.invalid"
BEFORE, AFTER = "before", "after"
CANCELLED, ENDED_ALREADY, MISSING, LOST_FILE, UNFIT = 604, 709, 2003, 91016, 100038
_QUOTED = r"'(?:[^']|'')*'"
_COPY = re.compile(
    rf"COPY INTO \S+(?: \(.*?\))? FROM (?P<location>{_QUOTED}|\S+)"
    rf"(?: FILES = \((?P<files>{_QUOTED}(?:, {_QUOTED})*)\))?(?P<options>.*)",
    re.DOTALL,
)
_CONDITION = re.compile(r"(\w+) (=|<>|<|>=|>|IS DISTINCT FROM) (%s|0)")
_COMPARISONS = {"=": operator.eq, "<>": operator.ne, "<": operator.lt, ">": operator.gt, ">=": operator.ge}
Row = dict[str, Any]


class CrashError(BaseException):
    """Stands for a worker that dies at this very call: nothing of the product catches it."""


class StatementError(Exception):
    """A statement that fails and leaves everything as it was."""

    def __init__(self, errno: int, message: str) -> None:
        super().__init__(message)
        self.errno = errno


@dataclass(slots=True)
class Fault:
    """What strikes the nth call of a name, or of any: an error, a crash, another answer of HTTP, a deed."""

    call: str | None
    when: str
    error: BaseException | Answer | Callable[[], object]
    nth: int


@dataclass(slots=True)
class Statement:
    """A statement of the SQL API; it runs while it has neither rows nor a failure."""

    text: str
    tag: str
    handle: str = field(default_factory=lambda: str(uuid.uuid4()))
    rows: list[Row] | None = None
    failure: StatementError | None = None
    created: dt.datetime = field(default_factory=lambda: _now())


@dataclass(slots=True)
class Pipe:
    """A file pipe: its COPY, the paths that it was given, and those that wait."""

    statement: str
    known: set[str] = field(default_factory=set)
    queue: list[str] = field(default_factory=list)
    auto_ingest: bool = False
    is_paused: bool = False
    created: dt.datetime = field(default_factory=lambda: _now())
    pattern: str | None = None

    def shown(self) -> Row:
        channel = "arn" if self.auto_ingest else None
        facts = {"created_on": self.created, "pattern": self.pattern, "kind": "STAGE"}
        return {"definition": self.statement, "notification_channel": channel, **facts}


class FakeLedger:
    """The load ledger of the table; in a statement it reads what SET and WHERE bind."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def read(self, statement: str, values: list[Any]) -> list[Row]:
        if " OR SOURCE_LOG = " in statement:
            return self._of_source(values)
        found = self._matching(statement.partition(" WHERE ")[2], iter(values))
        return sorted(found, key=lambda row: row["part"]) if "ORDER BY PART" in statement else found

    def plan(self, statement: str, values: list[Any]) -> list[Row]:
        names = re.findall(r" AS (\w+)", statement.partition(") AS N")[0])[1:]
        new = {name.lower(): _typed(name, value) for name, value in zip(names, values, strict=True)}
        is_new = not self._of(new["work"], new["part"])
        if is_new:
            empty = dict.fromkeys(("reports", "error", "query_id", "loaded_at", "rows_rejected"))
            self.rows.append({**empty, **new, "planned_at": _now(), "version": 1, "rows_loaded": 0})
        return [{"number of rows inserted": int(is_new)}]

    def change(self, statement: str, values: list[Any]) -> list[Row]:
        fields, _, where = statement.partition(" WHERE ")
        given = iter(values)
        names = re.findall(r"(\w+) = (?:PARSE_JSON\()?%s", fields)
        new = {name.lower(): _typed(name, next(given)) for name in names}
        found = self._matching(where, given)
        for row in found:
            if "IFF(STATE" in fields and row["state"] == "planned":
                row["state"] = "given up"
            row.update(new, version=row["version"] + ("VERSION + 1" in fields))
            if "PLANNED_AT = " in fields:
                row["planned_at"] = _now()
        return [{"number of rows updated": len(found)}]

    def files(self, statement: str, values: list[Any]) -> list[Row]:
        where = statement.partition(" WHERE ")[2].partition(") AS L")[0]
        if "L.LOADER" in statement:
            return [
                {"path": file["path"], "mark": file["mark"], "loader": row["loader"]}
                for row in self._matching(where, iter(values))
                for file in json.loads(row["files"])
                if row["state"] in ("loaded", "submitted")
            ]
        return [
            {"path": file["path"], "mark": file["mark"], "target_created": row["target_created"]}
            for row in self._matching(where, iter(values))
            for file in json.loads(row["files"])
            for report in json.loads(row["reports"] or "[]")
            for one in report
            if one["file"].endswith(file["path"]) and one["rows_loaded"]
        ]

    def logs(self, _: str, values: list[Any]) -> list[Row]:
        """The last entries of source logs that have given files of a source, or the own log."""
        found: dict[str, int] = {}
        for row in self._of_source(values):
            found[row["source_log"]] = max(found.get(row["source_log"], 0), row["source_entry"])
        return [{"source_log": log, "last_entry": last} for log, last in found.items()]

    def mark(self, statement: str, result: list[Row], created: dt.datetime) -> int:
        """Mark a COPY as loaded; the number of rows that were updated."""
        found = re.search(r"WHERE WORK = '(\w+)' AND PART = (\d+) AND VERSION = (\d+) ", statement)
        good = sum(one.get("rows_loaded", 0) for one in result)
        rows = [
            row
            for row in self._of(found[1], int(found[2]))
            if (row["version"], row["target_created"]) == (int(found[3]), created)
        ]
        if not rows or (good and "R.GOOD, 0) = 0" in statement):
            return 0
        (row,) = rows
        reports = [*json.loads(row["reports"] or "[]"), result]
        row |= {"state": "loaded", "reports": json.dumps(reports), "error": None, "loaded_at": _now()}
        row |= {"rows_loaded": good or row["rows_loaded"], "query_id": str(uuid.uuid4())}
        row["version"] += 1
        return 1

    def _of_source(self, values: list[Any]) -> list[Row]:
        own = (row for row in self.rows if row["source"] == values[1] or row["source_log"] == values[2])
        return [row for row in own if row["state"] in ("planned", "loaded", "submitted")]

    def _of(self, work: str, part: int) -> list[Row]:
        return [row for row in self.rows if (row["work"], row["part"]) == (work, part)]

    def _matching(self, where: str, values: Iterator[Any]) -> list[Row]:
        found = self.rows
        for name, sign, value in _CONDITION.findall(where):
            given = 0 if value == "0" else _typed(name, next(values))
            found = [row for row in found if _holds(row[name.lower()], sign, given)]
        if "LOADER IS NULL" in where:
            found = [row for row in found if row["loader"] is None]
        if "QUERY_ID IN (" in where:
            ids = set(values)
            found = [row for row in found if row["query_id"] in ids]
        return list(found)


class FakeAccount:
    """One account with one table, ``LOCAL.PUBLIC.T``."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.faults: list[Fault] = []
        self.rows: list[str] = []
        """The table."""
        self.stages: dict[str, dict[str, bytes]] = {}
        self.history: list[Row] = []
        """Rows of COPY_HISTORY, of COPY and of pipes."""
        self.pipes: dict[str, Pipe] = {}
        self.tokens: dict[str, str | None] = {}
        self.statements: dict[str, Statement] = {}
        """Of the SQL API, by their request ids."""
        self.ledgers: dict[str, FakeLedger] = defaultdict(FakeLedger)
        """By their names."""
        self.holds = False
        """True lets statements run and files wait until :meth:`finish`."""
        self.staged_at = "Sun, 01 Nov 2026 12:00:00 GMT"
        """When LIST reports that a file was staged which was put by no statement, or is put from now on."""
        self.stage_urls: dict[str, str] = {}
        """What the external ones stand for."""
        self.created = _now()
        """The table's age."""
        self.put_at: dict[tuple[str, str], str] = {}
        self.names_skipped = True
        """False leaves files that COPY skips out of its result."""
        self._copied: set[tuple[str, str, str]] = set()
        self._lock = threading.RLock()

    def fault(self, call: str | None, when: str, error: BaseException | Answer, nth: int = 1) -> None:
        self.faults.append(Fault(call, when, error, nth))

    def meanwhile(self, call: str | None, when: str, deed: Callable[[], object], nth: int = 1) -> None:
        """Let somebody else do something, once, while the caller stalls."""
        self.faults.append(Fault(call, when, deed, nth))

    def put(self, path: str, *rows: str) -> None:
        self.stages.setdefault("S", {})[path] = "".join(f"{row}\n" for row in rows).encode()

    def copy(self, *paths: str) -> None:
        """Let somebody else load files by COPY."""
        self._copy("COPY INTO T FROM @S ON_ERROR = CONTINUE", None, paths)

    def finish(self) -> None:
        """Let every statement end, and every pipe load what waits."""
        self.holds = False
        for statement in self.statements.values():
            self._execute(statement)
        for name, pipe in self.pipes.items():
            self._load_waiting(name, pipe)

    def call(self, name: str, work: Callable[[], Any]) -> Any:
        """Do one call, unless a fault strikes before; one that strikes after it takes the answer away."""
        with self._lock:
            self.calls.append(name)
            for fault in self.faults:
                fault.nth -= fault.call in (None, name)
            due = next((fault for fault in self.faults if fault.nth == 0), None)
            if due is None:
                return work()
            self.faults.remove(due)
            found = work() if due.when == AFTER else None
        if isinstance(due.error, Answer):
            return due.error
        if isinstance(due.error, BaseException):
            raise due.error
        due.error()
        if due.when == AFTER:
            return found
        with self._lock:
            return work()

    def run(self, statement: str, values: Sequence[str] | None = None, **_: Any) -> list[Row]:
        """Run a statement of a session; rows by lower-case column name."""
        assert not values or statement % tuple(values)  # as the connector writes them into it
        for begin, (name, answer) in self._session.items():
            if statement.startswith(begin):
                return self.call(name, partial(answer, statement, list(values or ())))
        raise AssertionError(f"a statement that the fake does not know: {statement[:100]}")

    @property
    def ledger(self) -> FakeLedger:
        """The one that has the default name."""
        return self.ledgers["SNOWPIPE_LOADS"]

    def _ledger(self, statement: str) -> FakeLedger:
        found = re.search(r'(?:UPDATE|INTO|FROM) "LOCAL"\."PUBLIC"\."?(\w+)', statement)
        assert found is not None, statement
        return self.ledgers[found[1]]

    @cached_property
    def _session(self) -> dict[str, tuple[str, Callable[[str, list[str]], list[Row]]]]:
        """The statements of a session: how each begins, the name of the call, and what answers it."""
        return {
            "LIST ": ("LIST", self._list),
            "PUT ": ("PUT", self._put),
            "REMOVE ": ("REMOVE", self._remove),
            "DESCRIBE STAGE ": ("DESCRIBE", self._describe_stage),
            "DESCRIBE PIPE ": ("DESCRIBE", self._describe_pipe),
            "SHOW PIPES IN ": ("SHOW", self._show_pipes),
            "SHOW CHANNELS IN PIPE ": ("SHOW", self._show_channels),
            "SELECT SYSTEM$PIPE_STATUS(": ("PIPE STATUS", self._pipe_status),
            "SELECT SYSTEM$SNOWPIPE_STREAMING_UPDATE_CHANNEL_OFFSET_TOKEN(": ("SET TOKEN", self._set_token),
            "SELECT FILE_NAME": ("HISTORY", self._copy_history),
            "SELECT WAREHOUSE_SIZE": ("USAGE", lambda *_: []),
            "SELECT SOURCE_LOG": ("LEDGER", lambda *given: self._ledger(given[0]).logs(*given)),
            "SELECT F.VALUE": ("LEDGER", lambda *given: self._ledger(given[0]).files(*given)),
            "SELECT * FROM": ("LEDGER", lambda *given: self._ledger(given[0]).read(*given)),
            "MERGE INTO": ("PLAN", lambda *given: self._ledger(given[0]).plan(*given)),
            "UPDATE ": ("PLAN", lambda *given: self._ledger(given[0]).change(*given)),
            "SELECT QUERY_ID, ROWS_LOADED": ("LOADS", lambda *given: self._ledger(given[0]).read(*given)),
            "ALTER SESSION": ("SESSION", lambda *_: []),
            "SELECT MAX(CREATED) AS CREATED": ("AGE", self._age),
        }

    def send(self, method: str, url: str, *, query: Any, json_body: Any = None, **_: Any) -> Answer:
        *_parts, owner, last = urlsplit(url).path.split("/")
        work: Callable[[], Answer]
        if "/v1/data/pipes/" in url:
            name, work = last, partial(self._pipe_call, owner, last, json_body)
        elif last == "statements" and json_body["statement"].startswith("SHOW TABLES"):
            shown = Statement(json_body["statement"], "", rows=[{"name": TABLE, "created_on": self.created}])
            name, work = "SHOW", partial(_answer, shown)
        elif last == "statements":
            name, work = "submit", partial(self._submit, query["requestId"], json_body)
        else:
            name = "cancel" if last == "cancel" else "state"
            work = partial(self._known, owner if last == "cancel" else last, method)
        return self.call(name, work)

    def _submit(self, request_id: str, body: Any) -> Answer:
        """One request id stands for one statement: its repetition runs nothing, and gets the state."""
        known, tag = self.statements.get(request_id), body["parameters"]["QUERY_TAG"]
        if known is not None:
            assert (known.text, known.tag) == (body["statement"], tag), "one request id for two statements"
            return _answer(known, handle_only=True)
        known = self.statements[request_id] = Statement(body["statement"], tag)
        if not self.holds:
            self._execute(known)
        return _answer(known)

    def _known(self, handle: str, method: str) -> Answer:
        known = next((one for one in self.statements.values() if one.handle == handle), None)
        if known is None:
            return _json(404, {"code": "390404", "message": "no such statement"})
        if method == "GET":
            return _answer(known)
        if known.rows is not None or known.failure is not None:
            return _json(422, {"code": f"{ENDED_ALREADY:06}", "message": "has ended"})
        known.failure = StatementError(CANCELLED, "SQL execution canceled")
        return _json(200, {"statementHandle": handle})

    def _execute(self, statement: Statement) -> None:
        if statement.rows is None and statement.failure is None:
            try:
                statement.rows = self._transaction(statement.text.split(";\n"))
            except StatementError as failure:
                statement.failure = failure

    def _transaction(self, statements: Sequence[str]) -> list[Row]:
        """A COPY and the mark of it in the ledger: both happen, or nothing."""
        begin, copy, mark, check, commit = statements
        assert (begin, commit, "1 /" in check) == ("BEGIN", "COMMIT", True)
        before = list(self.rows), list(self.history), set(self._copied)
        result = self._copy(copy)
        if not self._ledger(mark).mark(mark, result, self.created):
            self.rows, self.history, self._copied = before
            raise StatementError(100051, "Division by zero")
        return [{"multiple statement execution": "Multiple statements executed successfully."}]

    def _copy(self, statement: str, pipe: str | None = None, only: Sequence[str] = ()) -> list[Row]:
        """One COPY: all of it happens, or nothing."""
        found = _COPY.fullmatch(statement)
        assert found is not None, f"no COPY: {statement[:100]}"
        (stage, path), options = _stage_and_path(found["location"]), found["options"]
        staged, folder = self.stages.setdefault(stage, {}), f"{path}/" if path else ""
        every = [name.removeprefix(folder) for name in sorted(staged) if name.startswith(folder)]
        results, loads, rows, marks, size = [], [], list[str](), list[tuple[str, str, str]](), 0
        limit = re.search(r"SIZE_LIMIT = (\d+)", options)
        assert "PURGE = TRUE" not in options
        for name in only or _texts(found["files"] or "") or every:
            content = self._content(stage, folder + name)
            mark = (stage, folder + name, _md5(content))
            skipped = pipe is None and mark in self._copied and "FORCE = TRUE" not in options
            if not skipped and limit is not None and size >= int(limit[1]):
                break
            listed = self._listed(stage, folder + name)
            result, kept = _loaded(listed, content, options, skipped=skipped)
            results.append(result)
            rows += kept
            if not skipped:
                size += len(content)
                loads.append(_history_entry(name, f"{stage}/{folder}", result, pipe))
            if kept and pipe is None:
                marks.append(mark)
        self.rows += rows
        self.history += loads
        self._copied.update(marks)
        hidden = set() if self.names_skipped else {"LOAD_SKIPPED"}
        if "RETURN_FAILED_ONLY = TRUE" in options:
            hidden = {"LOADED", "LOAD_SKIPPED"}
        results = [row for row in results if row["status"] not in hidden]
        return results or [{"status": "Copy executed with 0 files processed."}]

    def _content(self, stage: str, path: str) -> bytes:
        content = self.stages.get(stage, {}).get(path)
        if content is None:
            raise StatementError(LOST_FILE, f"Remote file '{path}' was not found")
        return gzip.decompress(content) if path.endswith(".gz") else content

    def _pipe_call(self, name: str, call: str, body: Any) -> Answer:
        if call != "insertFiles":  # whoever asks goes on to COPY_HISTORY
            return _json(404, {"code": "390404", "message": "no report"})
        pipe = self.pipes[name]
        new = [one["path"] for one in body["files"] if one["path"] not in pipe.known]
        pipe.known.update(new)
        pipe.queue += new
        if not self.holds:
            self._load_waiting(name, pipe)
        return _json(200, {"requestId": "r", "status": "success"})

    def _load_waiting(self, name: str, pipe: Pipe) -> None:
        waiting, pipe.queue = pipe.queue, []
        if waiting:
            self._copy(f"{pipe.statement} ON_ERROR = CONTINUE", name, waiting)

    def _list(self, _: str, values: list[str]) -> list[Row]:
        stage, path = _stage_and_path(values[0])
        pattern = re.compile(values[1] if len(values) > 1 else ".*")
        return [
            {
                "name": self._listed(stage, name),
                "size": len(content),
                "md5": _md5(content),
                "last_modified": self.put_at.get((stage, name), self.staged_at),
            }
            for name, content in sorted(self.stages.get(stage, {}).items())
            if name.startswith(path) and pattern.fullmatch(name)
        ]

    def _put(self, statement: str, _: list[str]) -> list[Row]:
        """A file that is there by its name is left, unless OVERWRITE is set."""
        source, target = _texts(statement)
        file, (stage, path) = Path(source.removeprefix("file://")), _stage_and_path(target)
        staged, name = self.stages.setdefault(stage, {}), f"{path}/{file.name}".removeprefix("/")
        if name in staged and "OVERWRITE = TRUE" not in statement:
            return [{"status": "SKIPPED"}]
        staged[name], self.put_at[stage, name] = file.read_bytes(), self.staged_at
        return [{"status": "UPLOADED"}]

    def _remove(self, _: str, values: list[str]) -> list[Row]:
        stage, path = _stage_and_path(values[0])
        pattern = re.compile(values[1] if len(values) > 1 else ".*", re.DOTALL)
        for name in [name for name in self.stages.get(stage, {}) if name.startswith(path)]:
            if pattern.fullmatch(self._listed(stage, name)):
                del self.stages[stage][name]
        return []

    def _describe_pipe(self, statement: str, _: list[str]) -> list[Row]:
        pipe = self.pipes.get(statement.rpartition(" ")[2].replace('"', ""))
        if pipe is None:
            raise StatementError(MISSING, "the pipe does not exist or not authorized")
        return [pipe.shown()]

    def _listed(self, stage: str, path: str) -> str:
        if (url := self.stage_urls.get(stage)) is not None:
            return f"{url.rstrip('/')}/{path}"
        return path if stage[0] in "%~" else f"{stage.lower()}/{path}"

    def _describe_stage(self, statement: str, _: list[str]) -> list[Row]:
        url = self.stage_urls.get(statement.rpartition(".")[2].replace('"', ""))
        return [{"property": "URL", "property_value": json.dumps([url])}] if url else []

    def _show_channels(self, *_: Any) -> list[dict[str, Any]]:
        where = {"database_name": DATABASE, "schema_name": SCHEMA, "table_name": TABLE}
        return [{"name": name, "offset_token": token, **where} for name, token in self.tokens.items()]

    def _show_pipes(self, statement: str, _: list[str]) -> list[Row]:
        keys = ("database_name", "schema_name", "name")
        inside = statement.removeprefix("SHOW PIPES IN ").replace('"', "").replace("DATABASE ", "")
        return [
            {**dict(zip(keys, name.split("."), strict=True)), **pipe.shown()}
            for name, pipe in self.pipes.items()
            if inside in ("ACCOUNT", name.partition(".")[0])
        ]

    def _age(self, *_: Any) -> list[Row]:
        return [{"created": self.created, "found": len(self.rows), "account_now": _now()}]

    def _pipe_status(self, _: str, values: list[str]) -> list[Row]:
        pipe = self.pipes[values[0].replace('"', "")]
        state = "PAUSED" if pipe.is_paused else "RUNNING"
        return [{"status": json.dumps({"executionState": state, "pendingFileCount": len(pipe.queue)})}]

    def _set_token(self, _: str, values: list[str]) -> list[Row]:
        self.tokens[values[1]] = values[2]
        return [{"status": "ok"}]

    def _copy_history(self, statement: str, values: list[str]) -> list[Row]:
        if "ACCOUNT_USAGE" in statement:
            since, until = map(dt.datetime.fromisoformat, values[3:5])
            found = [one for one in self.history if since <= one["last_load_time"] < until]
            found = [one for one in found if "PIPE_NAME IS NULL" not in statement or one["pipe_name"] is None]
            return sorted(found, key=lambda one: one["last_load_time"])
        since, more = dt.datetime.fromisoformat(values[1]), values[2:]
        found = [one for one in self.history if one["last_load_time"] >= since]
        if "PIPE_NAME =>" in statement:
            name = more.pop(0).replace('"', "").rpartition(".")[2]
            found = [one for one in found if one["pipe_name"] == name]
        if "FILE_NAME IN (" in statement:
            found = [one for one in found if one["file_name"] in more]
        if "CONTAINS(FILE_NAME" in statement:
            found = [one for one in found if more[0] in one["file_name"]]
        return sorted(found, key=lambda one: one["last_load_time"])


def _loaded(listed: str, content: bytes, options: str, *, skipped: bool) -> tuple[Row, list[str]]:
    """The row of a COPY's result for one file, and the rows that it puts into the table."""
    lines = [] if skipped else content.decode().splitlines()
    good = [line for line in lines if "bad" not in line]
    errors = len(lines) - len(good)
    policy = found[1] if (found := re.search(r"ON_ERROR = (\w+)", options)) else "ABORT_STATEMENT"
    if errors and policy == "ABORT_STATEMENT":
        raise StatementError(UNFIT, f"Numeric value 'bad' is not recognized, file {listed}")
    kept = [] if errors and policy.startswith("SKIP_FILE") else good
    status = "LOADED" if not errors else "PARTIALLY_LOADED" if kept else "LOAD_FAILED"
    counts = {"rows_parsed": len(lines), "rows_loaded": len(kept), "errors_seen": errors}
    return {"file": listed, "status": "LOAD_SKIPPED" if skipped else status, **counts}, kept


def _history_entry(name: str, below: str, result: Row, pipe: str | None) -> Row:
    names = pipe.split(".") if pipe else (None, None, None)
    return {
        "file_name": name,
        "stage_location": f"{DATABASE}.{SCHEMA}.{below}",
        "last_load_time": _now(),
        "row_count": result["rows_loaded"],
        "row_parsed": result["rows_parsed"],
        "error_count": result["errors_seen"],
        "status": str(result["status"]).replace("_", " ").capitalize(),
        **dict(zip(("pipe_catalog_name", "pipe_schema_name", "pipe_name"), names, strict=True)),
    }


def _stage_and_path(location: str) -> tuple[str, str]:
    """Stage and path of a location, whether it is written in quotes or not."""
    reference = StageReference.parse(_texts(location)[0] if location.startswith("'") else location)
    return reference.name.replace('"', ""), reference.path


def _texts(written: str) -> list[str]:
    return [text[1:-1].replace("''", "'").replace("\\\\", "\\") for text in re.findall(_QUOTED, written)]


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _holds(one: Any, sign: str, other: Any) -> bool:
    """Compare as SQL does, where nothing is equal to NULL, or different from it."""
    if sign == "IS DISTINCT FROM":
        return bool(one != other)
    return None not in (one, other) and bool(_COMPARISONS[sign](one, other))


def _typed(column: str, value: Any) -> Any:
    """A bound value as its column has it."""
    if value is None:
        return None
    if column in ("RUN_STARTED", "TARGET_CREATED", "PLANNED_AT", "LOADED_AT"):
        return dt.datetime.fromisoformat(value)
    numbers = ("PART", "LAST_PART", "VERSION", "ROWS_LOADED", "ROWS_REJECTED", "SOURCE_ENTRY", "TARGET_ROWS")
    return int(value) if column in numbers else value


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _answer(statement: Statement, *, handle_only: bool = False) -> Answer:
    handle = {"statementHandle": statement.handle}
    if statement.failure is not None:
        code = f"{statement.failure.errno:06}"
        return _json(422, {"code": code, "message": str(statement.failure), **handle})
    if statement.rows is None:
        return _json(202, {"code": "333334", **handle})
    if handle_only:
        return _json(200, handle)
    names = list(statement.rows[0])
    data = [[str(row[name]) for name in names] for row in statement.rows]
    described = {"rowType": [{"name": name.upper()} for name in names], "partitionInfo": [{}]}
    created = int(statement.created.timestamp() * 1000)
    return _json(200, {**handle, "createdOn": created, "resultSetMetaData": described, "data": data})


def _json(status: int, body: Any) -> Answer:
    return Answer(status, json.dumps(body).encode())
