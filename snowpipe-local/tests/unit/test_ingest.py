"""A commit writes rows, tokens and counters in one step, or leaves everything as it was."""

import duckdb
import pytest
from snowpipe_local.engine import ingest
from snowpipe_local.engine.channel import ROW_SEQ_GAP, TABLE_MISSING, Append, Channel
from snowpipe_local.engine.ingest import MUST_REOPEN
from snowpipe_local.errors import Refusal
from snowpipe_local.tables import NUMBER, TEXT, ClusteringKey, Column, Table
from tests.unit.streamed_table import Engine, StreamedTable, row


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    made = Engine(tmp_path_factory.mktemp("engine"))
    yield made
    made.catalog.close()


@pytest.fixture
def table(engine):
    return engine.table()


def commit(table: StreamedTable, *appends: Append) -> None:
    table.database.commit(appends)


def code(channel: Channel) -> str:
    return str(channel.status()["channel_status_code"])


def current(table: StreamedTable) -> Table:
    found = table.database.tables.find("PUBLIC", table.name)
    assert found is not None
    return found


def columns(table: StreamedTable) -> dict[str, str]:
    return {column.name: str(column.type) for column in current(table).columns}


def rejected(table: StreamedTable) -> list[tuple[object, ...]]:
    return table.database.committer_cursor.execute(
        f"SELECT * FROM {table.database.names.hidden('rejected_rows')} WHERE table_name = ?", [table.name]
    ).fetchall()


def is_refused(table: StreamedTable, channel: Channel) -> str:
    with pytest.raises(Refusal) as refusal:
        table.take(channel, row(99))
    return refusal.value.code


class TestCommit:
    def test_rows_token_and_counters_are_there_together(self, table):
        channel = table.open()
        first = table.take(channel, row(1, "x"), row(2, "y"), token="2")
        second = table.take(channel, row(3, "z"), token="3")
        commit(table, first, second)
        assert table.rows() == [(1, "x"), (2, "y"), (3, "z")]
        assert table.token() == "3"
        status = channel.status()
        assert (status["rows_inserted"], status["rows_parsed"], status["rows_error_count"]) == (3, 3, 0)
        assert (status["last_committed_offset_token"], status["channel_status_code"]) == ("3", "SUCCESS")
        assert first.durable.result(0) is second.durable.result(0) is None
        table.open(fail=True)  # for no row waits any more

    def test_the_error_table_has_each_rejected_row_with_its_position(self, engine):
        for transforms in [False, True]:
            table = engine.table(error_logging=True)
            pipe = (
                table.custom_pipe(columns=("ID",), expressions=("(j->>'id')::DECIMAL(38,0)",))
                if transforms
                else None
            )
            a, b = table.open("a", pipe=pipe), table.open("b", pipe=pipe)
            appends = [
                table.take(a, row(1), row(2), token="a2"),
                table.take(b, b"badX", row(3), b"bad \r", b"\xff", token="b3"),
                table.take(a, row(4), b'{"id":"x"}', token="a4"), table.take(b, b'{"name":"y"}', token="b4"),
            ]  # fmt: skip
            for append, start in zip(appends, ("a1", "b1", "a3", "b4"), strict=True):
                append.start_token = start
            commit(table, *appends)
            assert [one[0] for one in table.rows()] == [1, 2, 3, 4]
            no_number = (
                "the expression of the pipe failed or cannot be converted to NUMBER(38,0)"
                if transforms
                else "the value cannot be converted to NUMBER(38,0)"
            )
            no_object, no_value = "the row is not a JSON object", "a value is required (NOT NULL)"
            expected = [
                ("b", "b1", "b3", 3, "the row is not valid UTF-8", b"\xff"),
                ("b", "b1", "b3", 0, no_object, b"badX"), ("b", "b1", "b3", 2, no_object, b"bad "),
                ("a", "a3", "a4", 1, f'column "ID": {no_number}', b'{"id":"x"}'),
                ("b", "b4", "b4", 0, f'column "ID": {no_value}', b'{"name":"y"}'),
            ]  # fmt: skip
            pipe_name = a.pipe.key.name
            kept = rejected(table)
            assert [one[1:] for one in kept] == [("PUBLIC", pipe_name, table.name, *one) for one in expected]
            assert all(abs(one[0] - table.database.clock.now_ms()) < 3_600_000 for one in kept)
            status = [one.status() for one in (a, b)]
            assert [one["rows_error_count"] for one in status] == [1, 4]
            assert [one["last_error_message"] for one in status] == [expected[3][4], expected[4][4]]
            assert [one["last_error_offset_upper_bound"] for one in status] == ["a4", "b4"]

    def test_tables_share_a_commit_in_which_an_append_may_be_without_rows(self, engine, table):
        other = engine.table()
        a, b, c = table.open("a"), table.open("b"), other.open("c")
        table.database.clock.move(10.0)
        commit(
            table, table.take(a, row(1), token="a1"), other.take(c, row(3), b"\xff", b"[]", token="c1"),
            table.take(b, token="b1"), table.take(a, row(4), token="a2"),
        )  # fmt: skip
        assert (table.rows(), other.rows()) == ([(1, None), (4, None)], [(3, None)])
        assert (table.token("a"), table.token("b"), other.token("c")) == ("a2", "b1", "c1")
        assert [one.status()["rows_error_count"] for one in (a, b, c)] == [0, 0, 2]
        assert rejected(other) == []  # without ERROR_LOGGING
        strict = [("PUBLIC", one.name) not in table.database.tables.isolated_groups for one in (table, other)]
        assert strict == [True, False]
        assert abs(a.committed.active_on_ms - table.database.clock.now_ms()) < 5_000

    def test_a_key_that_the_first_row_lacks_and_one_in_another_case_are_not_lost(self, table):
        a, b = table.open("a"), table.open("b")
        for sent in [
            (table.take(a, row(1), row(2, "x"), row(3)),),
            (table.take(a, row(1), row(3)), table.take(b, row(2, "x"))),
            (table.take(a, b'{"ID":1}', b'{"other":0,"Id":3}', b'{"id":2,"NAME":"x","more":[]}'),),
            (table.take(a, b'{"other":0}', row(1), row(2, "x"), row(3)),),
        ]:
            commit(table, *sent)
            assert table.rows() == [(1, None), (2, "x"), (3, None)]
            table.database.committer_cursor.execute(f"DELETE FROM {table.definition.path}")

    def test_a_table_returns_to_the_strict_path_after_some_commits(self, table):
        channel, name = table.open(), ("PUBLIC", table.name)
        isolated = table.database.tables.isolated_groups
        commit(table, table.take(channel, b"bad"))
        left = isolated[name]
        for _ in range(left):
            assert isolated[name] > 0
            commit(table, table.take(channel, row(1)))
        assert isolated[name] == 0
        commit(table, table.take(channel, row(1)))
        assert isolated[name] == 0
        assert len(table.rows()) == left + 1

    def test_a_commit_leaves_something_to_checkpoint_and_a_group_without_rows_does_not(self, table):
        channel, gone = table.open("c"), table.open("gone")
        orphan = table.take(gone, row(1))
        gone.drop()
        table.database.dirty = False
        commit(table, orphan)
        assert table.database.dirty is False
        commit(table, table.take(channel, row(1)))
        assert table.database.dirty is True
        channel = table.elastic()
        first, second = table.take(channel, row(2)), table.take(channel, row(3))
        commit(table, second, first)
        assert table.rows() == [(1, None), (2, None), (3, None)]
        assert first.durable.result(0) is second.durable.result(0) is None


class TestCustomPipes:
    """What a pipe of CREATE PIPE does with keys and columns."""

    def test_a_pipe_that_matches_with_case_takes_the_exact_keys_alone(self, table):
        channel = table.open(pipe=table.custom_pipe(case_sensitive=True))
        commit(table, table.take(channel, b'{"ID":1,"name":"x"}', b'{"ID":2,"NAME":"y"}'))
        assert table.rows() == [(1, None), (2, "y")]
        commit(table, table.take(channel, b'{"ID":3,"NAME":"z","name":"x"}'))
        assert table.rows()[2:] == [(3, "z")]
        commit(table, table.take(channel, b'{"ID":4,"name":"x"}', b"bad", b'{"id":5,"NAME":"y"}'))
        assert table.rows()[3:] == [(4, None)]
        assert channel.status()["rows_error_count"] == 2

    def test_a_pipe_that_transforms_fills_its_columns_by_its_expressions(self, table):
        pipe = table.custom_pipe(
            columns=("NAME", "ID"), expressions=("j->>'id'", "length(j->>'name')::DECIMAL(38,0)")
        )
        channel = table.open(pipe=pipe)
        commit(table, table.take(channel, row(1, "abc"), b"bad", row(2, "de"), token="3"))
        assert table.rows() == [(2, "2"), (3, "1")]
        assert (channel.status()["rows_inserted"], channel.status()["rows_error_count"]) == (2, 1)
        assert ("PUBLIC", table.name) not in table.database.tables.isolated_groups

    def test_a_pipe_that_leaves_out_a_required_column_needs_its_default(self, engine):
        for default, rejected in [(None, 1), ("7", 0)]:
            columns = (Column("NAME", TEXT), Column("KIND", NUMBER, nullable=False, default=default))
            table = engine.table(columns=columns)
            channel = table.open(pipe=table.custom_pipe(columns=("NAME",), expressions=("j->>'name'",)))
            commit(table, table.take(channel, row(1, "x")))
            assert table.rows() == ([] if rejected else [("x", 7)])
            assert channel.status()["rows_error_count"] == rejected

    def test_pipes_of_one_table_share_a_commit(self, table):
        matches, transforms = (
            table.open(pipe=table.custom_pipe(**options))
            for options in (
                {"case_sensitive": True},
                {"columns": ("ID",), "expressions": ("10 * (j->>'id')::DECIMAL(20,0)",)},
            )
        )
        default = table.open()
        commit(
            table, table.take(transforms, row(1), token="t1"), table.take(default, row(2, "x"), token="d1"),
            table.take(matches, b'{"ID":3,"name":"x"}', token="m1"),
            table.take(transforms, row(4), b"bad", token="t2"),
        )  # fmt: skip
        assert table.rows() == [(2, "x"), (3, None), (10, None), (40, None)]
        tokens = [one.committed.offset_token for one in (matches, transforms, default)]
        assert tokens == ["m1", "t2", "d1"]
        assert transforms.status()["rows_error_count"] == 1


_EVERY_COLUMN = {"columns": ("ID", "NAME"), "expressions": ("(j->>'id')::DECIMAL(38,0)", "j->>'name'")}


class TestClustering:
    """The order of rows in a table with a clustering key."""

    @pytest.fixture
    def clustered(self, engine):
        return engine.table(clustering_key=ClusteringKey("LINEAR(NAME)", ('"NAME"',)))

    def stored(self, table: StreamedTable) -> list[int]:
        found = table.database.committer_cursor.execute(f"SELECT ID FROM {table.definition.path}").fetchall()
        return [int(number) for (number,) in found]

    def test_rows_lie_by_the_key_and_then_by_channel_where_the_pipe_clusters(self, clustered, table):
        commit(table, table.take(table.open("z"), row(2, "b")), table.take(table.open("a"), row(0, "a")))
        assert self.stored(table) == [2, 0]  # it has no key
        for options, order in [
            (None, [4, 2, 1, 5, 3]), ({"cluster_at_ingest_time": True}, [4, 2, 1, 5, 3]),
            ({"cluster_at_ingest_time": False}, [1, 2, 3, 4, 5]),
            ({"cluster_at_ingest_time": True, **_EVERY_COLUMN}, [4, 2, 1, 5, 3]),
            ({"cluster_at_ingest_time": False, **_EVERY_COLUMN}, [1, 2, 3, 4, 5]),
        ]:  # fmt: skip
            for bad in [[], [b"bad"]]:
                clustered.create(replace=True)
                pipe = None if options is None else clustered.custom_pipe(**options)
                late, early = clustered.open("z", pipe=pipe), clustered.open("a", pipe=pipe)
                commit(
                    clustered, clustered.take(late, row(1, "b"), row(2, "a"), row(3, "d"), *bad),
                    clustered.take(early, row(4, "a"), row(5, "c")),
                )  # fmt: skip
                assert self.stored(clustered) == order


class TestSequence:
    """No commit moves a token past rows that are lost."""

    def test_appends_after_a_lost_one_are_not_committed_and_the_channel_must_be_reopened(self, table):
        channel, other = table.open(token="0"), table.open("other")
        old = table.take(table.open("old"), row(9), token="9")
        table.open("old")
        appends = [table.take(channel, row(number), token=str(number)) for number in (1, 2, 3, 4)]
        commit(table, appends[0], *appends[2:], old, table.take(other, row(5), token="5"))
        assert (table.rows(), table.token(), code(channel)) == ([(1, None), (5, None)], "1", ROW_SEQ_GAP)
        assert (table.token("other"), table.token("old"), code(other)) == ("5", None, "SUCCESS")
        assert [append.durable.cancelled() for append in appends] == [False, False, True, True]
        assert is_refused(table, channel) == ROW_SEQ_GAP


STEPS = ["restore", "evolve", "insert", "channels", "rejected", "commit"]


class TestFailedCommit:
    """A commit that fails at any of its steps: nothing of it stays, and its channels must be opened again."""

    @pytest.fixture(params=STEPS)
    def fail(self, request, engine):
        patch = pytest.MonkeyPatch()
        database = engine.database

        def broken(*_: object, **__: object) -> None:
            raise RuntimeError(f"fault at {request.param}")

        def arm() -> None:
            owner, name = {
                "restore": (Append, "restore"), "evolve": (ingest, "_evolve"), "insert": (ingest, "_insert"),
                "channels": (database.store, "update_channels"),
                "rejected": (database.store, "add_rejected_rows"), "commit": (database, "reach"),
            }[request.param]  # fmt: skip
            patch.setattr(owner, name, broken)

        self.repair = patch.undo
        yield arm
        patch.undo()

    def test_nothing_stays_and_rows_come_once_when_they_are_sent_again(self, engine, fail, tmp_path, caplog):
        table = engine.table(error_logging=True)
        a, b, bystander = table.open("a"), table.open("b"), table.open("z")
        commit(table, table.take(a, row(0), token="a0"))
        group = [
            table.take(a, row(1), b"bad", token="a1"), table.take(b, row(2), token="b1"),
            table.take(a, row(3), token="a2"),
        ]  # fmt: skip
        waiting = table.take(a, row(4), token="a3")
        fail()
        commit(table, *group)
        self.repair()
        assert "opened again" in caplog.text
        assert (table.rows(), table.token("a"), table.token("b")) == ([(0, None)], "a0", None)
        assert (code(a), code(b), code(bystander)) == (MUST_REOPEN, MUST_REOPEN, "SUCCESS")
        assert a.status()["last_committed_offset_token"] == "a0"
        assert (a.status()["rows_inserted"], a.status()["rows_error_count"]) == (1, 0)
        assert all(append.durable.cancelled() for append in group)
        assert is_refused(table, a) == is_refused(table, b) == MUST_REOPEN
        commit(table, waiting)  # which waited in the queue behind the commit that failed
        assert (table.rows(), table.token("a"), code(a)) == ([(0, None)], "a0", ROW_SEQ_GAP)
        with engine.after_a_crash(tmp_path / "copy") as restored:
            assert (table.rows(restored), table.token("a", restored)) == ([(0, None)], "a0")
        table.open("a", fail=True)
        table.open("b", fail=True)
        commit(
            table, table.take(a, row(1), b"bad", row(3), row(4), token="a3"),
            table.take(b, row(2), token="b1"),
        )  # fmt: skip
        assert [one[0] for one in table.rows()] == [0, 1, 2, 3, 4]
        assert (table.token("a"), table.token("b")) == ("a3", "b1")
        assert (a.status()["rows_error_count"], code(a)) == (1, "SUCCESS")


class TestTablesThatGo:
    def test_appends_of_a_dropped_channel_or_table_are_not_committed(self, engine, table):
        dropped, channel, other = engine.table(), table.open("c"), table.open("d")
        gone = [table.take(channel, row(1), token="1"), dropped.take(dropped.open(), row(1))]
        kept = table.take(other, row(2), token="2")
        channel.drop()
        table.database.tables.drop("PUBLIC", dropped.name)
        commit(table, *gone, kept)
        assert (table.rows(), table.token("d")) == ([(2, None)], "2")
        assert (table.token("c"), code(channel)) == (None, TABLE_MISSING)
        assert all(append.durable.cancelled() for append in gone)


class TestEvolution:
    @pytest.mark.parametrize("error", [ingest.EvolutionError("no"), duckdb.Error("no")], ids=repr)
    def test_rows_whose_columns_cannot_be_added_are_left_out(self, engine, table, monkeypatch, error):
        def refuse(*_: object, **__: object) -> None:
            raise error

        evolving = [engine.table(schema_evolution=True) for _ in range(2)]
        channels = [one.open() for one in evolving]
        appends = [
            one.take(channel, row(1), token="1") for one, channel in zip(evolving, channels, strict=True)
        ]
        monkeypatch.setattr(ingest, "plan", refuse)
        commit(table, *appends, table.take(table.open(), b'{"id":2,"more":true}', token="2"))
        assert [(one.rows(), one.token()) for one in evolving] == [([], None)] * 2
        assert [code(channel) for channel in channels] == [MUST_REOPEN] * 2
        assert (table.rows(), table.token()) == ([(2, None)], "2")

    def test_pipes_and_tables_of_one_commit_may_each_add_columns(self, engine):
        table, other = (engine.table(schema_evolution=True) for _ in range(2))
        exact = table.open("exact", pipe=table.custom_pipe(case_sensitive=True))
        transforms = other.custom_pipe(columns=("ID",), expressions=("(j->>'id')::DECIMAL(38,0)",))
        commit(
            table, table.take(exact, b'{"ID":1,"more":true}', token="1"),
            table.take(table.open(), b'{"id":2,"other":"x"}', token="1"),
            other.take(other.open(pipe=transforms), b'{"id":1,"more":true}'),
        )  # fmt: skip
        assert list(columns(table)) == ["ID", "NAME", "more", "OTHER"]
        assert table.rows() == [(1, None, True, None), (2, None, None, "x")]
        assert (code(exact), table.token()) == ("SUCCESS", "1")
        assert other.rows() == [(1, None)]  # a pipe that transforms adds no columns
        commit(other, other.take(other.open(), b'{"id":2,"more":true}'))
        assert other.rows() == [(1, None, None), (2, None, True)]

    def test_the_type_of_a_new_column_is_one_that_all_values_fit(self, engine):
        for values, kind in [
            (["1", "-2"], "NUMBER(38,0)"), (["18446744073709551615", "-1"], "NUMBER(38,0)"),
            (["1", "1.5"], "FLOAT"), (["18446744073709551615", "-1", "1.5"], "FLOAT"),
            (["true", "null"], "BOOLEAN"), (["null"], "VARCHAR(16777216)"),
            (["1", '"x"'], "VARCHAR(16777216)"), (["1.5", "true"], "VARCHAR(16777216)"),
            (['"2026-01-02"', '"2026-01-03"'], "DATE"),
            (['"2026-01-02"', '"2026-01-02 03:04"'], "VARCHAR(16777216)"),
            (['"2026-01-02 03:04"', '"2026-01-02T03:04:05.123456789"'], "TIMESTAMP_NTZ(9)"),
            (['"2026-01-02T03:04:05Z"', '"2026-01-02 03:04:05+05:30"'], "TIMESTAMP_TZ(9)"),
            (['"on 2026-01-02"'], "VARCHAR(16777216)"), (['{"a":1}', "null"], "VARIANT"),
            (["[1]", "1", '{"a":1}'], "VARIANT"),
        ]:  # fmt: skip
            table = engine.table(schema_evolution=True)
            rows = [f'{{"id":{number},"more":{value}}}'.encode() for number, value in enumerate(values)]
            commit(table, table.take(table.open(), b"no row", b"[1]", *rows, token="1"))
            assert columns(table) == {"ID": "NUMBER(38,0)", "NAME": "VARCHAR(16777216)", "MORE": kind}
            assert [more is None for _, _, more in table.rows()] == [value == "null" for value in values]

    def test_spellings_of_a_key_are_one_column(self, engine):
        for exact, rows, added in [
            (False, ['{"id":1,"x":1,"X":2}'], {"X": "NUMBER(38,0)"}),
            (False, ['{"id":1,"x":1}', '{"id":1,"X":true}'], {"X": "VARCHAR(16777216)"}),
            (True, ['{"ID":1,"x":1}', '{"ID":1,"X":2}'], {"X": "NUMBER(38,0)"}),
            (True, ['{"ID":1,"b":1,"a":true}'], {"a": "BOOLEAN", "b": "NUMBER(38,0)"}),
            (False, ['{"Id":1,"NAME":"x"}'], {}),
        ]:
            table = engine.table(schema_evolution=True)
            channel = table.open(pipe=table.custom_pipe(case_sensitive=exact))
            commit(table, table.take(channel, *(one.encode() for one in rows)))
            assert columns(table) == {"ID": "NUMBER(38,0)", "NAME": "VARCHAR(16777216)"} | added
            assert list(columns(table))[2:] == list(added)

    def test_a_row_without_a_required_value_drops_not_null(self, engine):
        for exact, first, rest, is_required in [
            (False, '{"id":1}', '{"ID":2}', True), (False, '{"id":1}', '{"name":"x"}', False),
            (False, '{"id":1}', '{"id":null}', False), (False, '{"id":1}', "no row", True),
            (True, '{"ID":1}', '{"ID":2}', True), (True, '{"ID":1}', '{"id":2}', False),
        ]:  # fmt: skip
            table = engine.table(schema_evolution=True)
            channel = table.open(pipe=table.custom_pipe(case_sensitive=exact))
            commit(table, table.take(channel, first.encode(), rest.encode()))
            assert current(table).columns[0].nullable is not is_required
            assert len(table.rows()) == 2 - (rest == "no row")

    def test_a_default_fills_a_required_column_that_has_no_key_and_not_one_that_is_null(self, engine):
        filled = (Column(name, NUMBER, nullable=False, default="7") for name in "AB")
        table = engine.table(columns=(Column("ID", NUMBER), *filled), schema_evolution=True)
        commit(table, table.take(table.open(), b'{"id":1}', b'{"id":2,"b":null}'))
        assert [one.nullable for one in current(table).columns] == [True, False, True]
        assert table.rows() == [(1, 7, 7), (2, 7, None)]

    def test_a_key_that_is_no_name_and_more_than_a_hundred_columns_are_refused(self, engine):
        for keys, is_refused in [
            (["x" * 255], False), (["x" * 256], True), ([""], True), ([" "], True),
            (range(100), False), (range(101), True),
        ]:  # fmt: skip
            table = engine.table(schema_evolution=True)
            more = ",".join(f'"{key}":1' for key in keys)
            commit(table, table.take(table.open(), f'{{"id":1,{more}}}'.encode(), token="1"))
            assert (len(table.rows()), table.token()) == ((0, None) if is_refused else (1, "1"))


class TestCrash:
    """A process that ends at a step of the commit, and what the next one finds in the files."""

    @pytest.mark.parametrize(
        ("point", "rows", "token"),
        [("before-commit", [(1, None)], "1"), ("after-commit", [(1, None), (2, None), (3, None)], "3")],
    )
    def test_rows_and_token_are_both_there_or_neither_is(self, engine, tmp_path, point, rows, token):
        table = engine.table()
        channel = table.open()
        commit(table, table.take(channel, row(1), token="1"))
        found: list[tuple[object, object]] = []

        def reach(passed: str) -> None:
            if passed == point:
                with engine.after_a_crash(tmp_path / "copy") as restored:
                    found.append((table.rows(restored), table.token("c", restored)))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(table.database, "reach", reach)
            commit(table, table.take(channel, row(2), token="2"), table.take(channel, row(3), token="3"))
        assert found == [(rows, token)]
