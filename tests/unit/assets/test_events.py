"""Assets: the one form of a URI, and what outlet events report of tokens and rows."""

from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.airflow_connections  # noqa: F401  gives Airflow a home before it is imported
from airflow_provider_snowpipe.assets.events import (
    LoadedChannel,
    describe_file_load,
    describe_outlets,
    event_extra,
)
from airflow_provider_snowpipe.assets.uri import TableAddress, dataset_identity, sanitize_uri, snowpipe_asset
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.progress import ListedChannel
from tests.airflow_version import AIRFLOW
from tests.outlet_events import OutletEvents
from tests.refusals import refused

TABLE = {"account": "ORG-ACCT", "database": "DB", "schema": "S", "table": "T"}
A = LoadedChannel("p_s_a", "a:3", True, 3, "a")
B = LoadedChannel("p_s_b", "b:9", False, 9, "b")


def plain_event():
    """An outlet event as Airflow before 3.3 has it."""
    return SimpleNamespace(extra={})


def partitioned_event():
    """An outlet event as Airflow 3.3 has it."""
    keys = []
    return SimpleNamespace(extra={}, keys=keys, add_partitions=keys.extend)


def hook_of(pipe="T-STREAMING", account="org-acct"):
    """As much of a hook as events need."""

    def known_account():
        if account is None:
            raise ConfigurationError("the extra field 'account' is missing")
        return account

    channel = ListedChannel("p_s_a", "DB", "S", "T", pipe=pipe)
    name = PipeName("DB", "S", pipe)
    return SimpleNamespace(pipe_name=lambda: name, account=known_account, list_channels=lambda: [channel])


def describe(*outlets, channels, hook=None, kind=partitioned_event):
    events = OutletEvents(kind)
    task = SimpleNamespace(outlets=list(outlets))
    describe_outlets(task, {"outlet_events": events}, hook or hook_of(), channels)
    return [events.made.get(getattr(outlet, "uri", "")) for outlet in outlets]


def test_an_event_reports_tokens_and_rows_that_are_known_to_be_committed():
    other = LoadedChannel("p_s_c", "c:1", True, 1, "c")
    for channel, channels, expected in [
        (None, [A, other], {"committed": True, "tokens": {"p_s_a": "a:3", "p_s_c": "c:1"}, "rows": 4}),
        (None, [A, B], {"committed": False, "tokens": {"p_s_a": "a:3"}, "rows": 3}),
        ("p_s_a", [A, B], {"committed": True, "tokens": {"p_s_a": "a:3"}, "rows": 3}),
    ]:
        (event,) = describe(snowpipe_asset(**TABLE, channel=channel), channels=channels)
        assert event.extra == {"pipe": "DB.S.T-STREAMING", **expected}
    (event,) = describe(snowpipe_asset(**TABLE), channels=[A], hook=hook_of("MY_PIPE"))
    assert event.extra["pipe"] == "DB.S.MY_PIPE"


def test_rows_and_keys_without_a_column_are_reported_only_where_they_are_known():
    loaded = [LoadedChannel(name, "1", True, 2, None, {"KIMD": 1}) for name in "ab"]
    assert event_extra("P", loaded)["unknown_columns"] == {"KIMD": 2}
    assert "unknown_columns" not in event_extra("P", [LoadedChannel("c", "1", True, 2)])
    assert "rows" not in event_extra("P", [LoadedChannel("c", "1", True)])


def test_assets_of_other_tables_are_left_alone_and_a_load_does_not_fail_for_its_event(caplog):
    from airflow.providers.common.compat.sdk import Asset

    events = describe(snowpipe_asset(**{**TABLE, "table": "U"}), Asset(uri="s3://bucket/key"), channels=[A])
    assert events == [None, None]
    assert "is not of table snowpipe://org-acct/DB/S/T" in caplog.text
    for hook in (hook_of("MY_PIPE"), hook_of(account=None)):
        caplog.clear()
        assert describe(snowpipe_asset(**TABLE), channels=[B], hook=hook) == [None]
        assert "tokens" in caplog.text


@pytest.mark.skipif(AIRFLOW < (3, 0), reason="it reads the events of the task SDK")
class TestWithoutAnOutlet:
    """The asset of a load that no outlet reports."""

    @pytest.fixture
    def events(self):
        from airflow.sdk.execution_time.context import OutletEventAccessors

        return OutletEventAccessors()

    @pytest.fixture
    def task(self):
        return SimpleNamespace(outlets=["report"], dag_id="orders", task_id="load")

    def reported(self, events):
        return [
            (one.source_alias_name, one.dest_asset_key.uri, one.extra)
            for accessor in events._dict.values()
            for one in accessor.asset_alias_events
        ]

    def describe(self, task, events, *channels):
        describe_outlets(task, {"outlet_events": events}, hook_of(), list(channels))

    def test_its_table_gets_an_event_when_all_is_committed(self, task, events):
        of_dag = task.outlets
        self.describe(task, events, A, LoadedChannel("p_s_e", None, True, 0, "e"))
        ((alias, uri, extra),) = self.reported(events)
        assert (alias, uri) == ("snowpipe:orders.load", "snowpipe://org-acct/DB/S/T")
        assert (extra["committed"], extra["tokens"], extra["rows"]) == (True, {"p_s_a": "a:3"}, 3)
        assert [getattr(one, "name", one) for one in task.outlets] == ["report", alias]
        assert of_dag == ["report"]

    def test_there_is_none_for_what_is_no_committed_load_or_beside_an_outlet(self, task, events, monkeypatch):
        for channels in ([A, B], [LoadedChannel("c", "1", True)], [LoadedChannel("c", "1", True, 0)], []):
            self.describe(task, events, *channels)
            assert (self.reported(events), task.outlets) == ([], ["report"])
        with monkeypatch.context() as patch:
            patch.setenv("AIRFLOW__SNOWPIPE__DESCRIBE_ASSETS", "False")
            self.describe(task, events, A)
        assert (self.reported(events), task.outlets) == ([], ["report"])
        task.outlets = [snowpipe_asset(**TABLE)]
        self.describe(task, events, A)
        assert (self.reported(events), len(task.outlets)) == ([], 1)

    def of_mapped(self, task, events, map_index, answers, monkeypatch):
        """Describe the load of a mapped task; what Airflow was asked, and for how long the task waited."""
        from airflow.sdk.execution_time import comms, task_runner

        asked, clock = [], [100.0]
        event = {"id": 1, "timestamp": "2026-01-01T00:00:00Z", "created_dagruns": []}
        event["asset"] = {"name": "a", "uri": "a", "group": "asset"}

        def send(message):
            asked.append(message)
            answer = answers[min(len(asked), len(answers)) - 1]
            if isinstance(answer, Exception):
                raise answer
            return comms.AssetEventsResult(asset_events=[event] if answer else [])

        def sleep(seconds):
            clock[0] += seconds

        times = SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep)
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=send), raising=False)
        monkeypatch.setattr("airflow_provider_snowpipe.assets.events.time", times)
        context = {"outlet_events": events, "ti": SimpleNamespace(map_index=map_index)}
        describe_outlets(task, context, hook_of(), [A])
        assert len(self.reported(events)) == 1
        assert {(one.uri, one.limit) for one in asked} <= {("snowpipe://org-acct/DB/S/T", 1)}
        return len(asked), round(clock[0] - 100.0, 3)

    @pytest.mark.skipif(AIRFLOW < (3, 2), reason="Airflow 3.2 is the first to report one event alone")
    @pytest.mark.parametrize(
        ("map_index", "answers", "asked", "seconds"),
        [
            (0, [False], 0, 0),
            (3, [False, False, True], 3, 0.4),
            (1000, [False], None, 30.0),
            (3, ["no answer"], 1, 0),
        ],
    )
    def test_mapped_tasks_make_a_new_asset_one_after_the_other(
        self, task, events, map_index, answers, asked, seconds, monkeypatch, caplog
    ):
        from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
        from airflow.sdk.execution_time.comms import ErrorResponse

        refusal = AirflowRuntimeError(ErrorResponse(error=ErrorType.GENERIC_ERROR, detail={"reason": "no"}))
        answers = [refusal if one == "no answer" else one for one in answers]
        found, waited = self.of_mapped(task, events, map_index, answers, monkeypatch)
        assert found == (found if asked is None else asked)
        assert waited == pytest.approx(seconds, abs=0.21)
        assert ("is not known: AirflowRuntimeError" in caplog.text) is (refusal in answers)

    def test_a_load_of_files_has_one_for_its_rows(self, task, events):
        hook = SimpleNamespace(account=lambda: "org-acct", database_and_schema=lambda: ("DB", "S"))
        for rows, expected in ((0, []), (7, [("snowpipe:orders.load", "snowpipe://org-acct/DB/S/T", 7)])):
            describe_file_load(task, {"outlet_events": events}, hook, "T", rows, "COPY")
            assert [(*one[:2], one[2]["rows"]) for one in self.reported(events)] == expected

    def test_no_load_fails_for_it(self, task, events, caplog):
        task.dag_id = "o" * 1_500
        self.describe(task, events, A)
        assert "no asset event" in caplog.text
        assert (self.reported(events), task.outlets) == ([], ["report"])


def test_each_partition_with_committed_rows_is_an_event_where_the_asset_asks_for_it(caplog):
    asset = snowpipe_asset(**TABLE, partitioned=True)
    empty = LoadedChannel("p_s_e", None, True, 0, "e")
    long = LoadedChannel("c", "1", True, 1, "x" * 251)
    channels = [A, B, empty, LoadedChannel("solo", "1:1", True, 1), long]
    assert describe(asset, channels=channels)[0].keys == ["a", "solo"]
    assert "partitions without an event: 1" in caplog.text
    assert describe(snowpipe_asset(**TABLE), channels=[A])[0].keys == []
    assert describe(asset, channels=[A], kind=plain_event)[0].extra["rows"] == 3


NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40)
ADDRESS = {"account": "Org-Acct", "database": "DB", "schema": "Public", "table": "Orders"}


@settings(max_examples=30)
@given(database=NAMES, schema=NAMES, table=NAMES, channel=st.none() | NAMES.map(lambda name: f"c{name}"))
def test_any_name_survives_the_uri(database, schema, table, channel):
    address = TableAddress("org-acct", database, schema, table, channel)
    assert TableAddress.parse(str(address)) == address
    assert sanitize_uri(urlsplit(str(address))).geturl() == str(address)


def test_case_counts_in_names_and_not_in_the_account():
    assert str(TableAddress(**ADDRESS)) == "snowpipe://org-acct/DB/Public/Orders"
    assert TableAddress.parse("SNOWPIPE://ORG-ACCT/DB/Public/Orders/") == TableAddress(**ADDRESS)


def test_another_form_is_refused_with_the_right_one_and_without_a_password():
    for uri, text in {
        "snowpipe://a/DB//T": "has 2 names after the account",
        "snowpipe://a/DB/S/T/c/x": "has 5 names after the account",
        "snowpipe:///DB/S/T": "account ''",
        "snowpipe://a/DB/S/T?x=1": "has a query",
        "snowpipe://a/DB/S/T#x": "has a fragment",
        "snowpipe://me:hunter2@a:443/DB/S/T": "names a user or a port",
        "snowpipe://a/DB/S/T/ELASTIC": "reserved for the elastic channel",
        "snowpipe://a/DB/S/T%00": "none of them NUL",
        f"snowpipe://a/{'D' * 256}/S/T": "at most 255",
        "snowflake://a/DB/S/T": "has another scheme",
    }.items():
        (error,) = refused(ConfigurationError, TableAddress.parse, [uri], text)
        assert "hunter2" not in str(error)


@pytest.mark.skipif(AIRFLOW < (3, 0), reason="a dataset of Airflow 2 has no name, and warns only")
def test_an_asset_has_the_uri_in_its_one_form_however_an_author_writes_it():
    from airflow.providers.common.compat.sdk import Asset

    asset = snowpipe_asset(**ADDRESS, channel="o_7/b", name="orders", extra={"team": "x"})
    assert asset.uri == "snowpipe://org-acct/DB/Public/Orders/o_7%2Fb"
    assert (asset.name, asset.extra) == ("orders", {"team": "x"})
    for uri in ("snowpipe://ORG-Acct/DB/Public/Orders/", "snowpipe://org-acct/DB/P%75blic/Orders"):
        assert Asset(name="orders", uri=uri) == snowpipe_asset(**ADDRESS, name="orders")
    with pytest.raises(ValueError, match="account"):
        Asset(uri="snowpipe://org-acct/DB")


def test_an_asset_is_for_lineage_the_dataset_that_the_operators_report():
    address = TableAddress(**{**ADDRESS, "account": "xy12345"}, channel="c")
    assert dataset_identity(address) == ("snowflake://xy12345.us-west-1.aws", "DB.Public.Orders")
