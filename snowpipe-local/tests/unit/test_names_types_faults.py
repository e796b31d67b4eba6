import asyncio
import math
import threading

import pytest
import sqlglot
from snowpipe_local.errors import ConfigurationError, Refusal, SqlError
from snowpipe_local.faults import parse_faults
from snowpipe_local.tables import ColumnType, find_name, quote, read_path
from sqlglot import exp


def test_names_are_upper_cased_or_kept_and_found():
    for text, path, rest in [
        ("a.b.c", ("A", "B", "C"), ""), ('"a b" . "c""d" LIKE', ("a b", 'c"d'), "LIKE"),
        (" x$1 (y)", ("X$1",), "(y)"),
    ]:  # fmt: skip
        assert read_path(text) == (path, rest)
    with pytest.raises(SqlError, match="identifier"):
        read_path("1abc")
    assert find_name("t", ["T", "t"]) == "t"
    assert find_name("t", ["T"]) == "T"
    assert find_name("u", ["T"]) is None
    assert quote('a"b') == '"a""b"'


def test_snowflake_types_have_one_spelling_and_one_storage_type():
    for written, snowflake, duckdb in [
        ("INT", "NUMBER(38,0)", "DECIMAL(38,0)"), ("NUMERIC(12,2)", "NUMBER(12,2)", "DECIMAL(12,2)"),
        ("DOUBLE PRECISION", "FLOAT", "DOUBLE"), ("FLOAT(67)", "FLOAT", "DOUBLE"),
        ("CHAR", "VARCHAR(1)", "VARCHAR"),
        ("TIME", "TIME(9)", "TIME"), ("TIMESTAMP", "TIMESTAMP_NTZ(9)", "TIMESTAMP"),
        ("TIMESTAMP_LTZ(6)", "TIMESTAMP_LTZ(6)", "TIMESTAMP WITH TIME ZONE"),
        ("TIMESTAMP_TZ", "TIMESTAMP_TZ(9)", "STRUCT(t TIMESTAMP WITH TIME ZONE, o SMALLINT)"),
        ("VARIANT", "VARIANT", "JSON"), ("ARRAY", "ARRAY", "JSON"),
    ]:  # fmt: skip
        tree = sqlglot.parse_one(f"CREATE TABLE t (c {written})", dialect="snowflake")
        definition = tree.find(exp.ColumnDef)
        kind = ColumnType.from_sqlglot(definition.kind)
        assert (str(kind), kind.duckdb) == (snowflake, duckdb)
        assert ColumnType.from_text(str(kind)) == kind


def test_faults_are_handed_out_in_order_run_out_and_are_added_at_run_time():
    faults = parse_faults(
        "commit-delay=2.5, answer-append=429x2,answer-append=404html,slow-open=0.5x1,invalidate-channel=2,"
        "append-503=1"
    )
    assert faults.commit_delay == 2.5
    assert [faults.refuse_append() for _ in range(2)] == [True, False]
    assert [faults.next_answer("append") for _ in range(4)] == ["429", "429", "404html", None]
    assert faults.next_answer("open") is None
    assert [faults.next_delay("open") for _ in range(2)] == [0.5, 0]
    assert [faults.invalidates() for _ in range(3)] == [False, True, False]
    faults.reach("before-commit")
    faults.add("hold-commits")
    assert (faults.commit_delay, faults.shown()) == (math.inf, ["hold-commits"])
    faults.clear()
    assert (faults.commit_delay, faults.shown()) == (0, [])
    faults = parse_faults("drop-append-response=1,answer-open=503@2x2")
    assert faults.drop_response()
    faults.add("drop-append-response=2,commit-delay=1.5,kill-before-commit=3,failover-pipe=a.b.C-STREAMING")
    assert faults.shown() == [
        "commit-delay=1.5", "drop-append-response=2", "answer-open=503@2", "answer-open=503@2",
        "kill-before-commit=3", "failover-pipe=A.B.C-STREAMING",
    ]  # fmt: skip
    assert [faults.drop_response() for _ in range(3)] == [False, True, False]
    with pytest.raises(ConfigurationError):
        faults.add("append-503=1,nonsense=1")
    assert not faults.refuse_append()
    faults.clear()
    assert faults.shown() == []


def test_a_call_that_is_held_up_goes_on_when_the_faults_are_cleared():
    faults = parse_faults("slow-statement=600")
    held = threading.Thread(target=faults.hold, args=("statement",))
    held.start()
    while faults.shown():
        assert held.is_alive()
    faults.clear()
    held.join(60)
    assert not held.is_alive()
    faults.hold("statement")


def test_an_unknown_fault_or_value_is_refused():
    for text in [
        "nonsense=1", "commit-delay", "hold-commits=5", "answer-append=429xx", "answer-nothing=429",
        "kill-nowhere=1", "commit-delay=nan", "drop-append-response=-1", "failover-pipe=T-STREAMING",
    ]:  # fmt: skip
        with pytest.raises(ConfigurationError):
            parse_faults(text)


def test_a_pipe_fails_over_and_back_whatever_the_case_of_its_name():
    faults = parse_faults(None)
    faults.fail_over('LOCAL.PUBLIC."my.pipe"')
    with pytest.raises(Refusal) as refusal:
        faults.check_pipe("local", "public", "MY.pipe")
    assert refusal.value.status == 410
    faults.fail_over("local.public.my.pipe", back=True)
    faults.check_pipe("LOCAL", "PUBLIC", "my.pipe")


def test_a_request_is_held_up_by_its_number_from_now_until_the_faults_are_cleared():
    faults = parse_faults("hold-answer=2")
    faults.requests = 5
    faults.add("hold-request=3")
    assert (faults.holds("hold-request", 8), faults.shown()) == (True, ["hold-request=3"])

    async def both() -> None:
        held = asyncio.create_task(faults.hold_if(True))
        await faults.hold_if(False)
        while not faults.held:
            await asyncio.sleep(0)
        faults.clear()
        await held

    asyncio.run(both())
    assert (faults.held, faults.holds("hold-request", 8), faults.shown()) == (0, False, [])
