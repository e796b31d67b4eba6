"""What the pages know of pipes and plans from the XComs of tasks, and what they leave out."""

import json
from dataclasses import replace

import pytest
from sqlalchemy.orm import Session

from airflow_provider_snowpipe.links.snowpipe import PageAddress
from airflow_provider_snowpipe.routing.cost_model import CostModel
from airflow_provider_snowpipe.routing.load_plan import LoadPlan
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.airflow_tables import PLAN, page_address, streamed

PIPE = PipeName("LOCAL", "PUBLIC", "ORDERS-STREAMING")


@pytest.fixture(scope="module", autouse=True)
def served():
    """Import what the API server does, when the first test runs: every process collects this file."""
    global HistoryLimits, PipeState, Rights, Where, cost, read_history, read_plans, shape_words

    from airflow_provider_snowpipe.plugins.history import read_history, read_plans
    from airflow_provider_snowpipe.plugins.pages import PipeState
    from airflow_provider_snowpipe.plugins.rendering import cost, shape_words
    from airflow_provider_snowpipe.plugins.rights import HistoryLimits, Rights, Where


@pytest.fixture
def read(airflow_tables):
    """Read as a user who may read everything unless ``rights`` limits it."""

    def history(where=None, rights=None, **limits):
        given = rights or Rights(frozenset({"orders", "other"}), lambda _: True)
        with Session(airflow_tables.engine) as session:
            return read_history(session, given, HistoryLimits(**limits), where or Where())

    return history


@pytest.fixture
def pipe(read):
    def state(channel=None):
        return PipeState.of("lake", PIPE, read().tasks, channel)

    return state


def test_address_is_read_as_it_was_written_and_of_anything_else_is_none():
    name = "team/a b&c"
    expected = PageAddress(name, PIPE, "x&y=/#?")
    assert PageAddress.read(page_address(name, channel="x&y=/#?")) == expected
    assert PageAddress.read("/prefix" + page_address(name)) == replace(expected, channel=None)
    kinds = ("pipe?database=D&schema=S&pipe=P", "channels")
    others = [None, {}, "", "https://[", *(f"/snowpipe/connections/c/{kind}" for kind in kinds)]
    assert [PageAddress.read(text) for text in others] == [None] * 6


class TestHistory:
    def test_of_a_channel_has_only_its_rows_that_did_not_load(self, airflow_tables, pipe):
        rows = [{"where": name, "position": "1", "reason": "no", "text": name} for name in "ab"]
        channels = {name: {"to": "f:1", "rows": 1} for name in "ab"}
        airflow_tables.leave(**streamed(channels, unloaded={"path": "/d", "run": "r", "rows": rows}))
        shown = [[row.text for one in pipe(name).tasks for row in one.not_loaded] for name in ("a", None)]
        assert shown == [["a"], ["a", "b"]]

    def test_of_a_stream_is_channel_by_channel(self, airflow_tables, read, pipe):
        channels = {
            "a": {"to": "f:3", "rows": 3, "rejected": 1},
            "b": {"to": "g:5", "rows": 5, "latency_ms": 90, "bytes": 2_000_000_000},
        }
        airflow_tables.leave(**streamed(channels), map_index=2)

        (task,) = read().tasks

        assert (task.connection, task.pipe, task.key.map_index) == ("lake", PIPE, 2)
        assert (task.rows, task.rejected, task.rows_per_second, task.latency_ms) == (8, 1, 4.0, 90)
        assert task.credits == pytest.approx(2 * CostModel().stream_credits_per_gb)
        assert [(one.channel, one.committed, one.target) for one in task.channels] == [
            ("a", "f:3", "f:3"),
            ("b", "g:5", "g:5"),
        ]
        airflow_tables.leave(run="r2", **streamed({"b": {"to": "f:9", "rows": 5}}))
        assert (pipe("a").rows, len(pipe("a").tasks), len(pipe("a").channels)) == (3, 1, 1)

    def test_of_an_append_and_of_a_change_of_a_channel(self, airflow_tables, pipe):
        page = {"channel_page": page_address("lake", channel="a")}
        value = {"channel": "a", "pipe": str(PIPE)}
        appended = {**value, "from": None, "to": "1:2", "rows": 2, "rejected": 0, "committed": False}
        target = {"a": {"token": "1:2", "offset_format": "batch:row", "rows": 2}}
        airflow_tables.leave(run="r1", return_value=appended, targets=target, **page)
        assert (pipe().lag_rows, pipe().word) == (2, "BEHIND")
        airflow_tables.leave(
            run="r2", minutes_ago=1, return_value={**value, "old": "1:2", "new": "1:9"}, **page
        )
        assert (pipe().lag_rows, pipe().channels[0].committed, pipe().word) == (0, "1:9", "COMMITTED")

    @pytest.mark.parametrize(("token", "lag"), [("f:2", 3), ("f:10", 0), ("other", 3)])
    def test_a_sensor_reports_what_is_committed(self, airflow_tables, pipe, token, lag):
        airflow_tables.leave(**streamed({"a": {"to": "f:3", "rows": 3, "committed": False}}))
        assert pipe().lag_rows == 3
        for minutes, seen in [(2, {"a": token}), (1, json.dumps({"a": token}))]:  # a worker's, a triggerer's
            left = {"channel_page": page_address("lake"), "return_value": seen}
            airflow_tables.leave(run=f"w{minutes}", task="wait", minutes_ago=minutes, **left)
            assert pipe().lag_rows == lag
            points = [(point.sent, point.committed) for point in pipe().points]
            assert (points[0], points[-1]) == ((3, 0), (3, 3 - lag))

    def test_the_next_load_reports_that_its_predecessor_is_committed(self, airflow_tables, pipe):
        airflow_tables.leave(run="r1", **streamed({"a": {"to": "f:3", "rows": 3, "committed": False}}))
        second = {"a": {"from": "f:3", "to": "f:5", "rows": 2, "committed": False}}
        airflow_tables.leave(run="r2", minutes_ago=2, **streamed(second))
        assert pipe().lag_rows == 2
        assert pipe().lag_seconds == pytest.approx(120, abs=60)


_OBJECT = {"__classname__": "pathlib.PurePosixPath", "__version__": 1, "__data__": ["/x"]}
_NAMES = {"database": "LOCAL", "schema": "PUBLIC", "pipe": "ORDERS-STREAMING"}
_AUDIT = {"connection": "lake", "names": _NAMES, "channels": 3, "differences": [], "notes": [], "found": []}
_STRANGE = {
    "an object": _OBJECT,
    "an object in a channel": {"channels": {"a": _OBJECT}},
    "an object of a number": {"channels": {"a": {"rows": _OBJECT, "to": _OBJECT}}, "seconds": _OBJECT},
    "a class that is not allowed": {"__classname__": "os.system", "__version__": 1, "__data__": "true"},
    "a nested list": "[" * 9_000 + "]" * 9_000,
    "a nested channel": json.dumps({"channels": {"a": {"to": [[[[[[[[[[[[[[[[[[[[0]]]]]]]]]]]]]]]]]]]]}}}),
    "a long text": "x" * 10_000,
    "a long name": {"channels": {"x" * 10_000: {"to": "f:1", "rows": 1}}},
    "a long token": {"channels": {"a": {"to": "f:" + "1" * 10_000, "rows": 1}}},
    "too long": {"channels": {"a": {"to": "f:1", "rows": 1, "more": "x" * 30_000}}},
    "many channels": {"channels": {str(at): 0 for at in range(1_000)}},
    "a number without an end": {"channels": {"a": {"to": "f:1", "rows": 10**400}}, "seconds": 1e300},
    "digits": '{"channels": {"a": {"to": "f:1", "rows": ' + "9" * 5000 + "}}}",
    "no number": '{"channels": {"a": {"to": "f:1", "rows": NaN, "latency_ms": Infinity}}}',
    "half a character": '{"channels": {"\\ud800": {"to": "\\udfff", "rows": 1}}}',
    "true": True,
    "audits without names": {"pipes": [None, [], {"names": []}, {"names": {"database": {}}}]},
    "an audit of other kinds": {"pipes": [{**_AUDIT, "notes": "x"}], "at": 5, "depth": ["x"]},
    "an audit of long ago": {"pipes": [{**_AUDIT, "channels": 1e300}], "at": "0001-01-01T00:00:00+14:00"},
    "many audits": {"pipes": [_AUDIT] * 100},
}


class TestForeignXComs:
    """An XCom is what a DAG wrote: no object is made of it, and a strange one spoils its own task only."""

    @pytest.mark.parametrize("key", ["return_value", "targets", "channel_page", "plan", "outcome", "audit"])
    def test_spoil_their_own_task_only(self, airflow_tables, client, key):
        from airflow.models.xcom import XComModel

        good = {**streamed({"good": {"to": "f:3", "rows": 3}}), "plan": PLAN.as_json()}
        airflow_tables.leave(run="good", **good)
        for run, value in _STRANGE.items():
            airflow_tables.leave(run=run, minutes_ago=1, **{**good, key: value})
        client = client()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("airflow_provider_snowpipe.plugins.history._LONGEST_VALUE", 20_000)
            patch.setattr("airflow_provider_snowpipe.plugins.history._MOST_CHANNELS", 100)
            patch.setattr(XComModel, "deserialize_value", lambda row: pytest.fail("deserialised"))
            answers = {
                path: client.get(path, params=query)
                for path, query in {
                    "/overview": {},
                    "/plans": {},
                    "/dags/orders/tasks/load": {},
                    **{f"/dags/orders/runs/{run}": {} for run in ("good", "true/tasks/load/-1", *_STRANGE)},
                    "/connections/lake/pipe": _NAMES,
                }.items()
            }

        assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(answers, 200)
        assert "ORDERS-STREAMING" in answers["/overview"].text
        assert "good" in answers["/connections/lake/pipe"].text
        assert all("PurePosixPath" not in answer.text for answer in answers.values())


class TestBounds:
    def test_channels_take_room_too(self, airflow_tables, read):
        value = {"channels": {str(at): 0 for at in range(90)}}
        for run in range(30):
            airflow_tables.leave(run=f"r{run}", channel_page=page_address("lake"), return_value=value)
        assert sum(len(task.channels) for task in read(size=160_000).tasks) < 2_000

    def test_age_number_and_size(self, airflow_tables, read):
        for run in range(6):
            airflow_tables.leave(
                run=f"r{run}", minutes_ago=1440 * run + 1, **streamed({"a": {"to": "f:1", "rows": 1}})
            )
        assert len(read().tasks) == 6
        assert len(read(days=3).tasks) == 3
        latest = read(tasks=2)
        assert ([one.key.run_id for one in latest.tasks], latest.is_cut) == (["r1", "r0"], True)
        assert read(tasks=6).is_cut is False
        assert all(one.channels == () for one in read(size=10).tasks)

    def test_nothing_of_a_dag_or_connection_that_may_not_be_read(self, airflow_tables, read):
        one = {"a": {"to": "f:1", "rows": 1}}
        airflow_tables.leave(**streamed(one))
        airflow_tables.leave(dag="other", **streamed(one, connection="secret"))

        def shown(*dags):
            found = read(rights=Rights(frozenset(dags), lambda name: name != "secret"))
            return [one.connection for one in found.tasks], found.hidden

        assert (shown("orders", "other"), shown("other")) == ((["lake"], 1), ([], 1))


class TestPlans:
    def test_of_ours_are_read(self, airflow_tables, monkeypatch):
        airflow_tables.leave(run="r1", plan={"somebody": "else's"})
        airflow_tables.leave(run="r2", minutes_ago=1, plan=PLAN.as_json())
        rights = Rights(frozenset({"orders"}), lambda _: True)

        with Session(airflow_tables.engine) as session:
            (load,), more = read_plans(session, rights, HistoryLimits(), Where(), 10)
            hidden, _ = read_plans(session, Rights(frozenset(), lambda _: True), HistoryLimits(), Where(), 10)

        assert (load.plan, more, hidden) == (PLAN, False, [])
        monkeypatch.setenv("AIRFLOW__SNOWPIPE__CREDIT_PRICE", "3.1")
        monkeypatch.setenv("AIRFLOW__SNOWPIPE__CURRENCY", "EUR")
        assert cost(1_000.0) == "1,000 (3,100.00 EUR)"
        live = {"bounded": False, "arrival_rate": 2000, "files": {"count": 3, "staged": True}}
        assert shape_words(live) == ["without an end", "3 files", "staged", "2 kB/s"]
        for changed in ({"path": "fly"}, {"estimates": [{"path": "copy"}]}, {"compact": {"x": 1}}):
            assert LoadPlan.from_json({**PLAN.as_json(), **changed}) is None
