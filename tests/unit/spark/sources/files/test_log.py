"""The plan of new units, by a folder in memory, and what a source log tells of its units."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from airflow_provider_snowpipe.spark.sources.files import log as logs
from airflow_provider_snowpipe.spark.sources.files import log_plan as planner
from airflow_provider_snowpipe.spark.sources.files.log import SourceLog, Unit, event_table
from airflow_provider_snowpipe.spark.sources.files.log_plan import Found
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

OWNER = "the load"
ROW = b"row\n"
NEW = b"new\n"
BIG = 8192 * b"x"
SECOND = 1_000_000_000


@dataclass
class Folder(planner.Contents):
    """Files by their names below a source, ``partition/file``, and the log of their units."""

    renames: bool = True
    growing: bool = False
    digests: bool = True
    reload: bool = False
    owner: str = OWNER
    files: dict[str, tuple[bytes, int, int, str]] = field(default_factory=dict)
    log: SourceLog = field(default_factory=SourceLog.empty)

    def put(self, name: str, content: bytes = ROW, at: int = 1, node: int = 0, version: str = "") -> None:
        self.files[name if "/" in name else f"p/{name}"] = content, at, node, version

    def take(self) -> list[str]:
        """Plan, and put what is new into the log; in words, without the partition p."""
        found = [
            Found(*name.split("/"), name, len(content), at, version, node)
            for name, (content, at, node, version) in self.files.items()
        ]
        new, changed = planner.plan(found, self.log, self.owner, self, lambda _: self.reload)
        self.note(*logs.event_rows(new))
        words = [
            f"{one.number} {one.name} {one.start}-{one.end}+{one.after_line}"
            + (f" was {one.renamed_from}" if one.renamed_from else "")
            for one in new
        ]
        words += [f"{one.found.name} of {one.before.number} {one.text}" for one in changed]
        return [one.replace("p/", "") for one in words]

    def play(self, *steps: Any) -> None:
        """Do steps: a name or a tuple puts a file, ``old>new`` moves one; a list is what a plan finds."""
        for step in steps:
            if isinstance(step, list):
                assert self.take() == step
            elif isinstance(step, dict):
                vars(self).update(step)
            elif isinstance(step, tuple) or ">" not in step:
                self.put(*((step,) if isinstance(step, str) else step))
            else:
                old, new = (f"p/{name}" for name in step.split(">"))
                self.files[new] = self.files.pop(old)

    def note(self, *rows: dict[str, object]) -> None:
        self.log = replace(self.log, events=event_table([*_rows(self.log), *rows]))

    def ends(self, found: Found, size: int) -> str:
        content = self.files[found.name][0]
        return planner.ends_digest(lambda begin, end: content[begin:end], size) if self.digests else ""

    def may_grow(self, found: Found) -> bool:
        return not found.name.endswith(".gz")

    def whole(self, found: Found, start: int, after_line: int, *, is_last: bool) -> int:
        content = self.files[found.name][0]
        assert after_line == content[:start].count(b"\n")
        return content.rfind(b"\n", start) + 1 or start if self.growing and is_last else len(content)

    def goes_on(self, found: Found, unit: Unit) -> tuple[int, int] | None:
        content = self.files[found.name][0]
        lines = content[unit.start : unit.end].count(b"\n")
        return (unit.end, unit.after_line + lines) if content[: unit.end].endswith(b"\n") else None

    def is_blank(self, found: Found, start: int, end: int) -> bool:
        return not self.files[found.name][0][start:end].strip()


def _rows(log: SourceLog) -> list[dict[str, object]]:
    columns = [column.to_pylist() for column in log.events.columns]
    return [dict(zip(log.events.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


# Unit 1 is the file other; unit 2 is the file x, a row written at 1 with the node 5.
X = [("x", ROW, 1, 5), ("other", b"other\n", 1, 6), ("empty", b""), ["1 other 0-6+0", "2 x 0-4+0"]]
MORE = ROW + b"more\n"
HISTORIES = {
    "new files have the next numbers, by partition and name": [
        *("b/log_10", "b/log_9", "b/log_9b", "a/z", ("a/empty", b"")),
        ["1 a/z 0-4+0", "2 b/log_9 0-4+0", "3 b/log_9b 0-4+0", "4 b/log_10 0-4+0"],
        *([], "a/a", ["5 a/a 0-4+0"]),
    ],
    "the last file of a partition that grows ends with its last whole line": [
        *({"growing": True}, ("10", b"row\nunfini"), ("9", b"row\nunfini"), ("q/1", b"row\nunfini")),
        *(["1 9 0-10+0", "2 10 0-4+0", "3 q/1 0-4+0"], ("10", b"row\nunfinished", 2), []),
        *(("10", b"row\nunfinished\nx", 3), ["4 10 4-15+1"], ("r/1", b"unfinished"), []),
        *(("10", b"new\nunfinished", 4), {"reload": True}, ["5 10 0-4+0"]),
    ],
    "files go on behind their last units": [
        *("x", "q/x", ["1 x 0-4+0", "2 q/x 0-4+0"]),
        *(("x", 3 * ROW, 2), ("q/x", 3 * ROW, 2), ["3 x 4-12+1", "4 q/x 4-12+1"]),
        *(("q/x", 4 * ROW, 3), ["5 q/x 12-16+3"]),
    ],
    "changed files are whole units where they are loaded again": [
        *(("x", 3 * ROW), "y", ["1 x 0-12+0", "2 y 0-4+0"], ("x", NEW, 2), ("y", 2 * ROW, 2)),
        *({"reload": True}, ["3 x 0-4+0", "4 y 4-8+1"], ("x", NEW + ROW, 3), ["5 x 4-8+1"]),
        *({"reload": False}, ("x", NEW, 4), "z"),
        ["6 z 0-4+0", "x of 5 overwritten, 8 bytes before and 4 now"],
    ],
    "renamed files go on under their new names": [
        *(*X, "other>q", ["3 q 6-6+1 was 1"], "x>y", ["4 y 4-4+1 was 2"], []),
        *(("y", 2 * ROW, 2, 5), ["5 y 4-8+1"], "y>z", ["6 z 8-8+2 was 5"]),
    ],
    "a renamed file may have grown since": [
        *(*X, "x>y", ("y", 2 * ROW, 2, 5), ["3 y 4-4+1 was 2", "4 y 4-8+1"])
    ],
    "only one of the files of one time is renamed": [*X, "x>y", ["3 y 4-4+1 was 2"]],
    "renamed files of one size and time go on, each behind its own units": [
        *("x", ("y", NEW), ["1 x 0-4+0", "2 y 0-4+0"], "x>u", "y>v"),
        *(["3 u 4-4+1 was 1", "4 v 4-4+1 was 2"], []),
    ],
    "a renamed file with an unfinished line beside a new one of the time and size of its whole lines": [
        *({"growing": True}, ("x", b"row\nunf", 1, 5), ["1 x 0-4+0"], "x>z", ("y", NEW, 1, 8)),
        *(["2 z 4-4+1 was 1", "3 y 0-4+0"], []),
    ],
    "it is a new file where the storage copies": [*X, {"renames": False}, "x>y", ["3 y 0-4+0"]],
    "a copy is a new file": [*X, ("y", ROW, 1, 8), ["3 y 0-4+0"]],
    "a link to a file that grows is a new file": [
        *(*X, ("x", 2 * ROW, 2, 5), ("link", 2 * ROW, 2, 5), ["3 link 0-8+0", "4 x 4-8+1"])
    ],
    "a renamed file leaves its name to others": [
        *(*X, "x>y", ("x", NEW, 2, 7), ("b", b"b\n", 3)),
        *(["3 y 4-4+1 was 2", "4 b 0-2+0", "5 x 0-4+0"], ("x", NEW + ROW, 4, 7), ["6 x 4-8+1"]),
    ],
    "files of one content may swap their names": [
        *(*X, ("z", ROW, 3), ["3 z 0-4+0"], "x>y", "z>x", "y>z"),
        *(["4 x 4-4+1 was 3", "5 z 4-4+1 was 2"], []),
    ],
    "a renamed file whose last line was not complete": [
        *(("u", b"row"), ["1 u 0-3+0"], "u>v", ["2 v 3-3+0 was 1"])
    ],
    "a renamed file of a storage without digests": [
        *({"digests": False}, "x", ["1 x 0-4+0"], "x>y", ["2 y 4-4+0 was 1"])
    ],
    "a file that was copied and cut goes on under the name of its copy": [
        *(*X, ("x", b"", 3, 5), ("copy", MORE, 2, 8), ("copy2", MORE, 2, 9)),
        *(["3 copy 4-4+1 was 2", "4 copy 4-9+1", "5 copy2 0-9+0"], ("x", NEW, 4, 5), ["6 x 0-4+0"]),
    ],
    "two files of one content that were copied and cut": [
        *(*X, ("y", ROW, 1, 7), ["3 y 0-4+0"], ("x", b"", 3), ("x.copy", ROW, 3), ("y", b"", 4)),
        *(("y.copy", ROW, 4), ["4 x.copy 4-4+1 was 2", "5 y.copy 4-4+1 was 3"]),
    ],
    "a part of a file that was cut is a new file": [
        *(*X, ("x", b"r\n", 3, 5), ("copy", b"row", 2)),
        ["3 copy 0-3+0", "x of 2 overwritten, 4 bytes before and 2 now"],
    ],
    "a copy of a file that has changed and was not cut is a new file": [
        *(*X, ("x", NEW, 3, 5), ("copy", ROW, 2), ["3 copy 0-4+0", "x of 2 written again"])
    ],
    "a file that cannot grow has changed if it has more": [
        *("x.gz", ["1 x.gz 0-4+0"], ("x.gz", 2 * ROW, 2)),
        ["x.gz of 1 overwritten, 4 bytes before and 8 now"],
    ],
    "a file without a digest has changed if it is another one": [
        *({"digests": False}, "x", ["1 x 0-4+0"], ("x", 2 * ROW, 2)),
        *(["x of 1 overwritten, 4 bytes before and 8 now"], ("x", ROW, 2), ["x of 1 written again"]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_of_files_has_these_units(name):
    Folder().play(*HISTORIES[name])


@pytest.mark.parametrize(
    ("content", "at", "version", "node"),
    [
        (2 * ROW, 2, "", 7), (2 * ROW, 2, "", 0), (NEW + ROW, 2, "", 5), (NEW, 2, "", 5), (ROW, 2, "", 5),
        (NEW, 1, "", 8), (ROW, 1, "v", 8),
    ],
)  # fmt: skip
def test_a_file_that_comes_where_another_one_goes_is_new(content, at, version, node):
    step = ("y", content, at, node, version)
    Folder().play(*X, "x>y", step, [f"3 y 0-{len(content)}+0"])


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((ROW, 1, 0, "v"), (ROW, 1, 0, "v"), []),
        ((BIG + ROW, 1, 0, "v"), (BIG + ROW, 2, 0, "v"), []),  # a copy of the same version
        ((ROW, 1), (ROW, 2), []),
        ((BIG, 1), (BIG, 2), []),
        ((BIG + ROW, 1), (BIG + ROW, 2), ["written again"]),
        ((ROW, 1), (NEW, 2), ["written again"]),
        ((ROW, 1, 0, "v"), (NEW, 1, 0, "w"), ["written again"]),
        ((ROW, 1, 0, "v"), (NEW, 1), ["written again"]),
        ((ROW, 1), (b"", 2), []),
        ((ROW, 1), (b"row", 2), ["overwritten, 4 bytes before and 3 now"]),
        ((1000 * ROW, 1), (NEW, 2), ["overwritten, 4,000 bytes before and 4 now"]),
        ((ROW, 1), (NEW + ROW, 2), ["overwritten, 4 bytes before and 8 now"]),
        ((ROW, 1), (b"row\n \n", 2), []),
        ((b"row", 1), (b"row\nrow\n", 2), ["its last line was taken before it was complete, at byte 3"]),
    ],
)
def test_a_file_has_changed_if_its_content_is_another_one(before, after, expected):
    folder = Folder()
    folder.put("x", *before)
    folder.take()
    folder.play(("x", *after), [f"x of 1 {text}" for text in expected])


def test_a_unit_has_what_recognizes_its_file():
    folder = Folder()
    folder.put("eu/a", ROW, 7, 3, "v1")
    folder.take()
    ends = planner.ends_digest(lambda begin, end: ROW[begin:end], 4)
    assert folder.log.units == [Unit(1, OWNER, "eu", "a", "eu/a", 0, 4, 0, 7, "v1", ends, 0, 3)]
    folder.put("eu/a", 2 * ROW, 8)
    folder.files["eu/b"] = folder.files.pop("eu/a")
    folder.put("eu/b", ROW, 7, 3, "v1")
    assert folder.take() == ["2 eu/b 4-4+1 was 1"]
    assert folder.log.units[1] == Unit(2, OWNER, "eu", "b", "eu/b", 4, 4, 1, 7, "v1", ends, 1, 3)


def test_files_of_another_load_or_partition_are_refused():
    folder = Folder()
    folder.play("x", ["1 x 0-4+0"])
    found = Found("q", "x", "p/x", 4, 1)
    for one in (found, replace(found, size=8, modified_ns=2)):
        with pytest.raises(ConfigurationError, match=r"'p/x'.*partition 'q'"):
            planner.plan([one], folder.log, OWNER, folder)
    with pytest.raises(ConfigurationError, match="another load"):
        planner.plan([replace(found, partition="p")], folder.log, "another load", folder)
    folder.files["q/x"] = folder.files.pop("p/x")
    with pytest.raises(ConfigurationError, match=r"'q/x'.*partition 'p'"):
        folder.take()


def test_a_log_shows_what_became_of_its_units():
    folder = Folder()
    folder.play("a", "b", "c", "d", ["1 a 0-4+0", "2 b 0-4+0", "3 c 0-4+0", "4 d 0-4+0"])
    folder.play(("d", 3 * ROW, 2), ["5 d 4-12+1"])
    rows = [{**one, "at_ns": one["number"] * SECOND, "run": "r"} for one in _rows(folder.log)]
    others = [("committed", 2, 0), ("committed", 3, logs.NO_ROWS), ("committed", 5, 3)]
    others += [("archived", 2, None), ("deleted", 3, None), ("channel", 1, None)]
    for at, (event, number, line) in enumerate(others, 61 * SECOND - 4):
        about = {"rows": line} if event == "committed" else {}
        rows.append(
            {"event": event, "number": number, "after_line": line, "at_ns": at, "run": "other", **about}
        )
    folder.log = log = SourceLog("id", "/in", 3, event_table(rows))

    assert (log.last_unit, [one.number for one in log.live_units]) == (5, [1, 4, 5])
    assert (log.committed(), log.times("archived")) == ({2: 0, 3: logs.NO_ROWS, 5: 3}, {2: 61 * SECOND - 1})
    first, second, third, fourth, last = log.described()
    taken = {"partition": "p", "lines_before": 0, "bytes": 4, "taken_by": "r", "loader": "stream"}
    end = {"state": "taken", "rows": None, "committed_at": None}
    assert first == {"unit": 1, "file": "p/a", "taken_at": "1970-01-01T00:00:01Z", **taken, **end}
    taken.update(lines_before=1, bytes=8)
    end = {"state": "committed", "rows": 3, "committed_at": "1970-01-01T00:01:00Z"}
    assert last == {"unit": 5, "file": "p/d", "taken_at": "1970-01-01T00:00:05Z", **taken, **end}
    assert [one["state"] for one in (second, third, fourth)] == ["archived", "deleted", "taken"]
    folder.play(["6 b 0-4+0", "7 c 0-4+0"])  # whose names those had that were cleaned up
    empty = SourceLog.empty()
    assert (empty.log_id, empty.source, empty.number, empty.last_unit, empty.units) == ("", "", 0, 0, [])


def test_a_log_names_the_channel_that_a_partition_of_a_load_has_now():
    folder = Folder()
    given = [("eu", "c1", OWNER), ("us", "c2", OWNER), ("eu", "c3", OWNER), ("us", "c4", "another")]
    for partition, name, owner in given:
        about = {"owner": owner, "partition": partition, "name": name}
        folder.note({"event": "channel", "number": 0, **about}, {"event": "unit", "number": 1, **about})
    assert folder.log.channels(OWNER) == {"eu": "c3", "us": "c2"}


def test_a_log_names_the_table_and_the_units_of_each_load_that_copy_and_pipes_were_given():
    folder = Folder()
    assert folder.log.table(OWNER) == ""
    for name, owner in [("t1", OWNER), ("t2", OWNER), ("t3", "another")]:
        folder.note({"event": "table", "number": 0, "owner": owner, "name": name})
    assert (folder.log.table(OWNER), folder.log.table("another")) == ("t2", "t3")
    about = [("a", OWNER, 0), ("b", OWNER, 4), ("c", OWNER, 4), ("d", OWNER, 5), ("e", "another", 6)]
    for number, (name, owner, entry) in enumerate([*about, ("f", OWNER, 7), ("g", OWNER, 8), about[1]], 1):
        folder.note({"event": "unit", "number": number, "name": name, "owner": owner, "entry": entry})
    for number, rows in {1: 5, 3: 6, 5: 7, 6: None, 7: 0, 8: 8}.items():
        folder.note({"event": "committed", "number": number, "after_line": 0, "rows": rows})
    assert folder.log.copied_rows(OWNER) == {"c": 6, "g": 0}
    given = folder.log.given(OWNER)
    assert {entry: [one.number for one in units] for entry, units in given.items()} == {4: [2], 5: [4]}


def test_files_keep_their_units_when_they_are_renamed_or_replaced():
    about = [("a", 0, 0), ("b", 0, 0), ("a", 4, 0), ("c", 4, 3), ("b", 0, 0), ("a", 0, 0), ("a", 4, 5)]
    units = [
        Unit(number, OWNER, "p", name, name, start, start + 4, 0, 1, renamed_from=was)
        for number, (name, start, was) in enumerate([*about, ("d", 4, 6)], 1)
    ]
    files = logs.FilesOfUnits.of(units)
    assert files.first == {1: 1, 2: 2, 3: 1, 4: 1, 5: 5, 6: 6, 7: 5, 8: 6}
    assert {file: one.number for file, one in files.last.items()} == {1: 4, 2: 2, 5: 7, 6: 8}
    assert files.names == {1: "c", 2: "b", 5: "a", 6: "d"}
    assert (files.held, files.replaced) == ({"c": 1, "a": 5, "d": 6}, {2})
    assert [files.name_of(one) for one in units] == ["c", None, "c", "c", "a", "d", "a", "d"]


def test_names_are_ordered_by_their_numbers_and_some_of_many_are_in_an_error():
    names = ["log_9", "log_010", "log_10", "log_10a", "log_11", "logs"]
    assert sorted(reversed(names), key=planner.natural_order) == names
    assert "log_11 and 1 more. Nothing" in str(planner.changed_error("c", names))
    assert "log_11. Nothing" in str(planner.changed_error("c", names[:5]))


def test_a_digest_is_that_of_the_first_and_the_last_bytes():
    def digest(content: bytes, size: int) -> str:
        return planner.ends_digest(
            lambda begin, end: content[max(begin, 0) : end] if begin >= 0 else b"", size
        )

    content = bytes(range(250)) * 40
    before = digest(content, 9000)
    assert before == digest(content[:9000], 9000) == digest(content[:4500] + b"x" + content[4501:], 9000)
    assert len(before) == 16
    others = [content[:at] + b"x" + content[at + 1 :] for at in (0, 4095, 4904, 8999)]
    assert before not in {digest(other, 9000) for other in others}
    assert digest(content, 10) == digest(content[:10], 10) != digest(content[:9] + b"x", 10)
