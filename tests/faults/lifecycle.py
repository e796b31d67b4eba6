"""Events in the life of a table, its channels and a task; and what the task has to do when it runs again.

``OUTCOMES`` is the table of docs/explanation/loading-files.md on green tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.faults.campaign import Run

KEPT = "green, and nothing is loaded again"
AGAIN = "green, and all rows are loaded again"
LOST_TOKEN = "SourcePositionError"
REJECTED = "FilesRejectedError"
EITHER = "green, or SourcePositionError where nothing but streams has loaded its files"


@dataclass(frozen=True)
class Again:
    """How the task of a run runs again.

    :param way: whose outcomes it has
    :param clear: tries of the same run; True when one succeeds
    :param next_run: tries of another run, with more rows; None where another run loads the same rows again
    :param next_way: whose outcomes that has
    :param add: adds rows for the next run, and returns them
    """

    way: str
    clear: Callable[[], bool]
    next_run: Callable[[], bool] | None = None
    add: Callable[[], set[int]] = set
    next_way: str = ""


def _sql(*statements: str) -> Callable[[Run], None]:
    def happens(run: Run) -> None:
        for statement in statements:
            run.sql(statement.format(t=run.table))

    return happens


def _expire(run: Run) -> None:
    """Let all channels be as after 30 quiet days."""
    with run.service.client(run.table) as client:
        for row in run.sql(f"SHOW CHANNELS IN TABLE {run.table}"):
            client.drop_channel(str(row["name"]))


EVENTS: dict[str, Callable[[Run], None]] = {
    "clone": _sql("CREATE OR REPLACE TABLE {t} CLONE {t}"),
    "clear": lambda _: None,
    "add column": _sql("ALTER TABLE {t} ADD COLUMN EXTRA VARCHAR"),
    "truncate": _sql("TRUNCATE TABLE {t}"),
    "recreate": _sql("CREATE OR REPLACE TABLE {t} LIKE {t}"),
    "widen column": _sql("ALTER TABLE {t} ALTER COLUMN NAME SET DATA TYPE VARCHAR(16777216)"),
    "delete": _sql("DELETE FROM {t} WHERE ID % 2 = 0"),
    "rename": _sql("ALTER TABLE {t} RENAME TO {t}_2", "CREATE TABLE {t} LIKE {t}_2"),
    "expire": _expire,
    "swap for empty": _sql("CREATE TABLE {t}_2 LIKE {t}", "ALTER TABLE {t} SWAP WITH {t}_2"),
    "rename and back": _sql("ALTER TABLE {t} RENAME TO {t}_2", "ALTER TABLE {t}_2 RENAME TO {t}"),
    "swap for clone": _sql("CREATE TABLE {t}_2 CLONE {t}", "ALTER TABLE {t} SWAP WITH {t}_2"),
}
"""Each way has all of its events in turn; ten runs have one of ten. A table with a pipe cannot be renamed."""

OUTCOMES = {
    "channel": {
        **dict.fromkeys(("clear", "truncate", "delete", "add column", "widen column"), KEPT),
        **dict.fromkeys(("clone", "recreate", "swap for clone", "swap for empty"), LOST_TOKEN),
        **dict.fromkeys(("rename", "rename and back", "expire"), LOST_TOKEN),
    },
    "folder": {
        **dict.fromkeys(("clear", "truncate", "delete", "add column", "widen column"), KEPT),
        **dict.fromkeys(("clone", "recreate", "swap for clone", "swap for empty", "rename"), LOST_TOKEN),
        **dict.fromkeys(("rename and back", "expire"), EITHER),
    },
    "later batch": dict.fromkeys(EVENTS, KEPT),
    "copy": {
        **dict.fromkeys(("clear", "expire", "rename and back", "add column", "widen column"), KEPT),
        **dict.fromkeys(("truncate", "recreate", "swap for empty", "rename"), AGAIN),
        **dict.fromkeys(("delete", "clone", "swap for clone"), REJECTED),
    },
    "pipe": {
        **dict.fromkeys(("clear", "expire", "clone", "add column", "widen column"), KEPT),
        **dict.fromkeys(("truncate", "recreate", "delete"), REJECTED),
    },
}


def _happen(run: Run, way: str) -> str:
    """Let the event happen whose turn it is, and return the outcome."""
    names = [name for name in EVENTS if name in OUTCOMES[way] and name in run.events] or ["clear"]
    name = names[run.turn % len(names)]
    EVENTS[name](run)
    run.faults.append(name)
    run.mark = run.log.stat().st_size
    return OUTCOMES[way][name]


def live_between(run: Run, again: Again) -> None:
    """Let one event happen between two tries of a task that looks at its table."""
    if again.way in ("copy", "pipe") and run.draw.random() < 0.3:
        outcome, run.again = _happen(run, again.way), None
        run.faults.append("between tries")
        run.ends = [outcome] if outcome == REJECTED else []


def live_on(run: Run, again: Again) -> None:
    """Let one event happen to a run that has succeeded, run the task again, and compare with its outcome."""
    before, is_next = set(run.present()), again.next_run is not None and run.draw.random() < 0.5
    outcome = _happen(run, (is_next and again.next_way) or again.way)
    run.faults.append("next run" if is_next else "cleared")
    left, name = set(run.present()), run.faults[-2]
    new = again.add() if is_next else set()
    notes, run.green = len(run.notes), False
    is_kept = outcome in (KEPT, EITHER)
    run.expected, run.optional = (left if is_kept else before) | new, set()
    is_green = (again.next_run if is_next and again.next_run else again.clear)()
    outcome = LOST_TOKEN if outcome == EITHER and not is_green else outcome
    is_error = outcome not in (KEPT, AGAIN, EITHER)
    if is_green and is_error:
        run.wrong["silent"] += 1
        run.notes.append(f"green after {name}: {outcome} is documented")
    elif not is_green and not (is_error and run.said(outcome)):
        run.wrong["broken"] += 1
        run.notes.append(f"not green after {name}: {outcome} is documented")
    elif not is_green:
        del run.notes[notes:]
        run.wrong["lost"] += len(left - set(run.present()))
        run.expected, run.optional, run.green = set(), left | new, True
