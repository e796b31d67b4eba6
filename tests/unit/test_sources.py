"""Typed sources and row policies: the same as their dictionaries, in every operator that takes them."""

import copy
import json
import pickle
import re
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest
from airflow.exceptions import AirflowProviderDeprecationWarning
from airflow.models.connection import Connection
from airflow.providers.common.compat.sdk import DAG, BaseOperator

from airflow_provider_snowpipe.decorators.append import SnowpipeAppendDecoratedOperator
from airflow_provider_snowpipe.decorators.route import SnowpipeRouteDecoratedOperator
from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.operators.branch import SnowpipeBranchOperator
from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sources import (
    DeltaSource,
    FileSource,
    IcebergSource,
    KafkaSource,
    RowPolicy,
    TableSource,
    bulk_values,
    stream_values,
)
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.spark.submit.plan import JobPlan, RowsToWrite
from airflow_provider_snowpipe.spark.submit.source import connected_source
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.airflow_version import AIRFLOW
from tests.refusals import refused

OUTPUT = BaseOperator(task_id="other").output
POLICY = RowPolicy(on_error="dead_letter", dead_letter_path="/rejected/{{ x }}", unknown_columns="fail")

# Together the dictionaries of a class have each of its fields with another value than its default.
DICTIONARIES = {
    FileSource: [
        {
            "path": "/in", "pattern": "*.log", "group_by": "name", "name_pattern": "(?P<partition>[a-z]+).*",
            "format": "csv", "columns": ["A"], "header": False, "column_names": ["A", "B"], "delimiter": ";",
            "quote": "'", "escape": "\\", "null_values": ["NULL"], "growing": True, "numbering": "ignored",
            "verify": "digest", "on_late_files": "warn", "listing_path": "/listings",
        },
        {"path": "/in", "format": "text", "text_column": "ROW", "compression": "gzip"},
        {"path": "/in", "group_by": "partition", "partition_key": "day", "partition_columns": True},
        {"path": "/in", "format": "parquet", "non_finite": "null"},
    ],
    KafkaSource: [
        {
            "bootstrap_servers": "k:9092", "topics": ["a", "b"], "start": "timestamp",
            "start_timestamp": "2026-01-31T06:00:00+00:00", "value_column": "V", "connect_envelope": True,
            "metadata": {"offset": "O"}, "record_metadata": "M", "key_format": "bytes", "tombstones": "drop",
            "isolation": "read_uncommitted", "group_id": "g", "timeout_seconds": 5.0,
            "options": {"client.id": "x"}, "conn_id": "events",
        },
        {"bootstrap_servers": "k:9092", "topic_pattern": "o.*", "value_format": "avro",
         "schema_registry_url": "http://r", "connector_name": "shop", "group_id": "connect-shop"},
        {"bootstrap_servers": "k:9092", "topics": ["a"], "malformed": "send", "reader": "client"},
    ],
    TableSource: [
        {"offset_column": "ID", "table": "t", "offset_type": "text", "partition_by": "K"},
        {"offset_column": "ID", "query": "SELECT 1", "name": "q", "ranges": [5, 9]},
        {"offset_column": "ID", "path": "/t", "format": "csv", "options": {"sep": ";"}, "binary": "HEX",
         "non_finite": "null", "explicit_nulls": False},
    ],
    DeltaSource: [
        {"order_by": "ID", "path": "/t", "offset_type": "text", "partition_by": "K", "starting_version": 3,
         "binary": "HEX", "non_finite": "null", "explicit_nulls": False},
        {"order_by": "ID", "table": "t"},
    ],
    IcebergSource: [
        {"table": "s.t", "catalog": "c", "options": {"a": "b"}, "partition_by": "K", "starting_snapshot": 9,
         "binary": "HEX", "non_finite": "null", "explicit_nulls": False, "conn_id": "lake"},
        {"path": "/t"},
    ],
    RowPolicy: [
        {"check_rows": True, "create_table": "if_missing", "evolve_columns": False,
         "unknown_columns": "ignore"},
        {"on_error": "dead_letter", "dead_letter_path": "/rejected"},
    ],
}  # fmt: skip
EACH = [(kind, values) for kind, each in DICTIONARIES.items() for values in each]


@pytest.fixture(autouse=True)
def connections(monkeypatch):
    extra = {"bootstrap.servers": "k1:9093", "sasl.password": "hush"}
    monkeypatch.setenv("AIRFLOW_CONN_EVENTS", json.dumps({"conn_type": "kafka", "extra": extra}))
    lake = {"conn_type": "iceberg", "host": "https://lake", "login": "me", "password": "hush"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(lake))


def test_every_field_is_in_a_dictionary():
    for kind, each in DICTIONARIES.items():
        assert {"kind", *(name for one in each for name in one)} >= {one.name for one in fields(kind)}, kind


@pytest.mark.filterwarnings("ignore:source (malformed|reader)")
@pytest.mark.parametrize(("kind", "values"), EACH)
def test_a_value_and_its_dictionary_are_equivalent(kind, values):
    made = kind(**values)
    written = made.as_json()

    assert {name: one for name, one in written.items() if name != "kind"} == values
    assert json.loads(json.dumps(written)) == written
    assert kind.from_mapping(written) == made
    assert copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made  # noqa: S301  its own bytes
    if kind is not RowPolicy:
        assert source_spec(written) == made


@pytest.mark.filterwarnings("ignore:source (malformed|reader)")
@pytest.mark.parametrize(("kind", "values"), [one for one in EACH if one[0] is not RowPolicy])
def test_the_plan_is_that_of_the_dictionary(kind, values):
    def plan(source):
        load = SnowpipeStreamOperator(task_id="load", source=source, table="T")
        return JobPlan(
            "a", "https://a", PipeName("D", "S", "P"), load._source()[0].channel_prefix or "p",
            load._source()[0].default_name, load._source()[0], credentials_path="/c",
        ).to_json()  # fmt: skip

    written = plan(kind(**values))

    assert written == plan(kind(**values).as_json())
    assert "conn_id" not in written
    assert JobPlan.from_json(written).to_json() == written


class TestRefuses:
    def test_a_wrong_value_by_its_name_and_what_it_may_be(self):
        for make, words in [
            (
                lambda: KafkaSource(topics=["t"], conn_id="c", start="soon"),
                ["start is 'soon'"],
            ),
            (lambda: KafkaSource(topics=["t"], conn_id="c", timeout_seconds="5"), ["timeout_seconds is '5'"]),
            (lambda: KafkaSource(topics=["t"]), ["conn_id"]),
            (lambda: FileSource(path=Path("/in")), ["path is PosixPath"]),
            (lambda: FileSource(path="/in", growing="yes"), ["growing is 'yes': it must be bool"]),
            (lambda: FileSource(path="/in", columns="A"), ["columns is 'A': it must be a list"]),
            (
                lambda: FileSource(path="{{ x }}", format="{{ y }}"),
                ["format is '{{ y }}'"],
            ),
            (lambda: FileSource(path="{{ x }}", format="text", header=False), ["header False"]),
            (lambda: TableSource(table="t", ranges=["5"]), ["ranges is"]),
            (lambda: IcebergSource(table="orders"), ["namespace"]),
            (lambda: RowPolicy(on_error="skip"), ["on_error is 'skip': it must be one of ['abort'"]),
            (lambda: RowPolicy(create_table="always"), ["create_table is 'always'"]),
            (lambda: RowPolicy(evolve_columns="yes"), ["evolve_columns is 'yes'"]),
            (lambda: RowPolicy(on_error="dead_letter"), ["dead_letter_path is not given"]),
            (lambda: RowPolicy(dead_letter_path="/rejected"), ["on_error='dead_letter'"]),
            (lambda: RowPolicy(on_error="dead_letter", dead_letter_path="here"), ["absolute"]),
            (lambda: RowPolicy(on_error="continue", check_rows=True), ["check_rows is True"]),
            (
                lambda: RowPolicy.from_mapping({"onError": "abort"}),
                ["'onError'", "'check_rows'"],
            ),
            (lambda: KafkaSource.from_mapping({"topic": "t"}), ["'topic' (value 't')", "'topics'"]),
            (lambda: FileSource.from_mapping({}), ["lacks the key 'path'"]),
        ]:
            refused(ConfigurationError, lambda make: make(), [make], *words)

    def test_an_unknown_key_without_a_value_that_may_be_secret(self):
        with pytest.raises(ConfigurationError, match=r"sasl\.password") as refused:
            source_spec({"kind": "kafka", "topics": ["t"], "sasl.password": "hush"})

        assert "hush" not in str(refused.value)

    def test_a_change(self):
        with pytest.raises(FrozenInstanceError):
            POLICY.on_error = "abort"

    def test_a_source_that_names_a_connection_in_a_plan(self):
        with pytest.raises(ConfigurationError, match="conn_id is 'events'"):
            JobPlan(
                "a", "https://a", PipeName("D", "S", "P"), "p", "t",
                KafkaSource(topics=("t",), conn_id="events"), credentials_path="/c",
            )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (KafkaSource(topics=["t"], conn_id="events"), "(topics=('t',), conn_id='events')"),
        (RowPolicy(), "RowPolicy()"),
        # What has the output of another task in it is checked in the task only.
        (
            TableSource(
                path=OUTPUT, options={"url": "jdbc:x://h/d?user=u&password=hush", "dbPassword": "hush"}
            ),
            "{'url': 'jdbc:x://h/d?user=u&password=…', 'dbPassword': '…'}",
        ),
        (
            IcebergSource(table=OUTPUT, options={"uri": "postgresql://me:hush@h/d"}),
            "{'uri': 'postgresql://…@h/d'}",
        ),
    ],
)
def test_the_repr_shows_what_was_given_and_no_secret(value, shown):
    assert shown in repr(value)
    assert "hush" not in repr(value)


JDBC = {"kind": "table", "offset_column": "ID", "path": "/t", "format": "jdbc"}
KAFKA = {"kind": "kafka", "bootstrap_servers": "k:9092", "topics": ["t"]}
ICEBERG = {"kind": "iceberg", "table": "s.t"}
SECRETS_IN_SOURCES = [
    *(
        {**JDBC, "options": {"dbtable": "t", "url": url}}
        for url in (
            "jdbc:postgresql://h/d?user=u&password=hush",
            "jdbc:postgresql://h/d?user=u&password={{ var.value.hush }}",
            "jdbc:postgresql://{{ conn.d.login }}:{{ conn.d.hush }}@h/d",
            "jdbc:sqlserver://h:1433;databaseName=d;user=u;password=hush;encrypt=true",
            "jdbc:sqlserver://h;user=u;pwd=hush",
            "jdbc:oracle:thin:u/hush@h:1521/d",
            "jdbc:oracle:thin:u/hush@//h:1521/d",
            "jdbc:mysql://u:hush@h:3306/d",
            "jdbc:mysql://address=(host=h)(user=u)(password=hush)/d",
            "jdbc:db2://h:50000/d:user=u;password=hush;",
            "jdbc:teradata://h/DATABASE=d,USER=u,PASSWORD=hush",
            "mongodb+srv://u:hush@h/d",
            "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=hush",
        )
    ),
    {**JDBC, "options": {"kafka.sasl.jaas.config": 'x required username="u" password="hush";'}},
    {**JDBC, "options": {"accountKey": "hush"}},
    {**JDBC, "options": {"sfPassword": "hush"}},
    {**JDBC, "path": "https://h/t.parquet?sv=1&sig=hush"},
    {**JDBC, "path": "s3a://KEY:hu/hush@b/t"},
    {"kind": "files", "path": "s3://KEY:hush@b/t"},
    {"kind": "files", "path": "/in", "listing_path": "s3://KEY:hush@b/t"},
    {"kind": "delta", "order_by": "ID", "path": "s3a://KEY:hush@b/t"},
    {**KAFKA, "schema_registry_url": "https://u:hush@r/x"},
    {**KAFKA, "options": {"sasl.jaas.config": "hush"}},
    {**KAFKA, "options": {"sasl.password": "hush"}},
    {**KAFKA, "options": {"schema.registry.basic.auth.user.info": "u:hush"}},
    {**KAFKA, "options": {"sasl.oauthbearer.token.endpoint.url": "https://u:hush@h/token"}},
    {**KAFKA, "options": '{"sasl.password": "hush"}'},
    {**ICEBERG, "options": {"credential": "me:hush"}},
    {**ICEBERG, "options": {"token": "hush"}},
    {**ICEBERG, "options": {"uri": "postgresql+psycopg2://u:hush@h/d"}},
    {**ICEBERG, "options": {"header.Authorization": "Bearer hush"}},
    {**ICEBERG, "options": {"adls.account-key": "hush"}},
    {**ICEBERG, "options": {"adls.connection-string": "AccountName=a;AccountKey=hush"}},
]


def test_a_secret_in_a_source_is_refused_and_not_repeated():
    for error in refused(ConfigurationError, source_spec, SECRETS_IN_SOURCES):
        assert re.search("secret|password|none that a Kafka source|no object", str(error))
        assert "hush" not in str(error)


def test_a_source_without_a_secret_is_taken():
    for values in [
        {**JDBC, "options": {"url": "jdbc:postgresql://h:5432/d?user=me@corp&sslkey=/k", "a": "9"}},
        {**JDBC, "options": {"url": "jdbc:sqlserver://h:1433;user=me@corp;trustServerCertificate=true"}},
        {**JDBC, "options": {"url": "jdbc:oracle:thin:@//h:1521/d"}},
        {**JDBC, "options": {"url": "jdbc:mysql://h1:3306,h2:3306/d?useAccessToken=true&user=a@b"}},
        {**JDBC, "options": {"query": "SELECT * FROM t WHERE token='x' AND (password=1)"}},
        {**JDBC, "path": "abfss://container@account.dfs.core.windows.net/t"},
        {**JDBC, "path": "hdfs://h:8020/t/token=5/a@b"},
        {**KAFKA, "options": {"sasl.oauthbearer.token.endpoint.url": "https://h/token"}},
        {**KAFKA, "schema_registry_url": "https://r:8081"},
        {**ICEBERG, "options": {"uri": "http://[::1]:8181/a@b", "rest.authorization-url": "https://h/x"}},
    ]:  # fmt: skip
        assert source_spec(values)


@pytest.mark.parametrize(
    ("values", "connection", "found"),
    [
        (
            {"kind": "kafka", "topics": ["t"]},
            {"host": "k", "password": "hush", "extra": {
                "schema.registry.url": "https://me:hus%68@r/x", "ssl.key.pem": "hush"}},
            {"sasl.password": "hush", "schema.registry.basic.auth.user.info": "me:hush",
             "ssl.key.pem": "hush"},
        ),
        (
            ICEBERG,
            {"host": "h", "login": "me", "password": "hush", "extra": {
                "adls.account-key": "hush", "oauth2-server-uri": "https://u:hush@h/o"}},
            {"credential": "me:hush", "adls.account-key": "hush", "oauth2-server-uri": "https://u:hush@h/o"},
        ),
        (ICEBERG, {"extra": {"uri": "mysql://u:hush@h/d"}}, {"uri": "mysql://u:hush@h/d"}),
    ],
    ids=["kafka", "iceberg", "iceberg-of-sql"],
)  # fmt: skip
def test_a_secret_of_a_connection_is_in_no_plan(values, connection, found):
    connected = Connection(
        conn_id="c", conn_type="x", **{**connection, "extra": json.dumps(connection["extra"])}
    )

    spec, secrets = connected_source({**values, "conn_id": "c"}, lambda _: connected)

    plan = JobPlan(
        "a", "https://a", PipeName("D", "S", "P"), "p", spec.default_name, spec, credentials_path="/c"
    )
    assert secrets.values == found
    for text in (plan.to_json(), repr(plan), repr(spec), spec.address, repr(secrets)):
        assert not re.search("hus(h|%68)", text)


def test_lists_are_tuples_and_field_names_columns():
    made = KafkaSource(conn_id="c", topics="t", metadata=["offset"])

    assert made == KafkaSource(conn_id="c", topics=("t",), metadata={"offset": "KAFKA_OFFSET"})
    assert FileSource(path="/in", format="csv", columns=["A"]).columns == ("A",)


class TestInTasks:
    """Templates, XComs, mapping and serialization, in a real DAG without a scheduler."""

    def test_templates_are_rendered_and_a_shared_value_stays(self):
        source = KafkaSource(conn_id="{{ c }}", topics=["{{ t }}"], options={"client.id": "{{ t }}"},
                             start="timestamp", start_timestamp="{{ at }}")  # fmt: skip
        before = copy.deepcopy(source)
        with DAG("d", schedule=None):
            first, second = (
                SnowpipeStreamOperator(task_id=name, source=source, table="T", row_policy=POLICY)
                for name in ("one", "two")
            )

        for task, topic in ((first, "orders"), (second, "clicks")):
            task.render_template_fields({"c": "events", "t": topic, "at": "2026-01-31T06:00:00Z", "x": topic})
            spec, secrets = task._source()
            assert isinstance(spec, KafkaSource)
            assert (spec.bootstrap_servers, spec.topics, spec.options) == (
                "k1:9093",
                (topic,),
                {"client.id": topic},
            )
            assert spec.start_timestamp == "2026-01-31T06:00:00Z"
            assert secrets.values == {"sasl.password": "hush"}
            assert task._schema_policy().policy == replace(POLICY, dead_letter_path=f"/rejected/{topic}")
        assert (source, POLICY.dead_letter_path) == (before, "/rejected/{{ x }}")

    def test_what_a_template_gives_is_checked_in_the_task(self):
        source = KafkaSource(conn_id="events", topics=["t"], start="timestamp", start_timestamp="{{ at }}")
        load = SnowpipeStreamOperator(task_id="load", source=source, table="T")
        load.render_template_fields({"at": "yesterday"})

        with pytest.raises(ConfigurationError, match="yesterday"):
            load._source()

    def test_the_output_of_another_task_makes_it_an_upstream_task(self):
        with DAG("d", schedule=None):
            before = BaseOperator(task_id="before")
            load = SnowpipeStreamOperator(
                task_id="load",
                source=FileSource(path=before.output, growing=before.output),
                table="T",
            )

        assert load.upstream_task_ids == {"before"}

    def test_every_operator_takes_them(self):
        files, topics = FileSource(path="/in"), KafkaSource(conn_id="events", topics=["t"])

        load = SnowpipeLoadOperator(task_id="load", source=files, table="T", row_policy=POLICY)
        append = SnowpipeAppendRowsOperator(task_id="append", rows=[], table="T", row_policy=POLICY)
        decorated = SnowpipeAppendDecoratedOperator(
            task_id="f", python_callable=list, table="T", row_policy=POLICY
        )
        branch = SnowpipeBranchOperator(task_id="branch", source=topics, stream="load")
        bulk = SnowpipeBulkLoadOperator(task_id="bulk", source=TableSource(query="SELECT 1"), table="T")

        assert load.source_files() == files
        assert [one._schema_policy().policy for one in (load, append, decorated)] == [POLICY] * 3
        assert branch.source == topics.as_json()
        assert bulk._rows() == RowsToWrite(query="SELECT 1")

    def test_a_function_may_return_one_to_route_by(self, monkeypatch):
        topics = KafkaSource(conn_id="events", topics=["t"])
        route = SnowpipeRouteDecoratedOperator(task_id="r", python_callable=lambda: topics, stream="load")
        seen = []
        monkeypatch.setattr(SnowpipeBranchOperator, "choose_branch", lambda self, _: seen.append(self.source))

        route.choose_branch({})

        assert seen == [topics.as_json()]

    def test_a_dag_is_serialized_as_with_dictionaries(self):
        def written(source, policy):
            with DAG("d", schedule=None) as dag:
                SnowpipeStreamOperator(task_id="load", source=source, table="T", row_policy=policy)
            return _written(dag)

        source = KafkaSource(conn_id="events", topics=["{{ t }}"])

        assert written(source, POLICY) == written(source.as_json(), POLICY.as_json())

    def test_a_mapped_task_takes_them(self):
        sources = [KafkaSource(conn_id="events", topics=[topic]) for topic in ("a", "{{ t }}")]
        with DAG("d", schedule=None) as dag:
            mapped = SnowpipeStreamOperator.partial(
                task_id="load", table="T", row_policy=POLICY
            ).expand(source=sources)  # fmt: skip
            SnowpipeStreamOperator.partial(task_id="others", source=sources[0], on_error="continue").expand(
                table=["T", "U"]
            )

        _written(dag)
        if AIRFLOW >= (3, 0):
            load = mapped.unmap({"source": sources[1]})
            load.render_template_fields({"t": "b", "x": "y"})
            assert load._source()[0].topics == ("b",)
            assert load.dead_letter_path == "/rejected/y"


def _written(dag):
    """The DAG as Airflow stores it, which the scheduler can read again."""
    if AIRFLOW >= (3, 2):
        from airflow.serialization.serialized_objects import DagSerialization
    else:
        from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization
    written = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    assert set(DagSerialization.from_dict(written).task_dict) == set(dag.task_dict)
    return written["dag"]["tasks"]


class TestConnections:
    @pytest.mark.parametrize(
        ("argument", "conn_id", "typed"),
        [
            ("kafka_conn_id", "events", KafkaSource(bootstrap_servers="b:1", topics=("t",))),
            ("iceberg_conn_id", "lake", IcebergSource(table="s.t")),
        ],
    )
    def test_an_old_argument_warns_and_does_the_same(self, argument, conn_id, typed):
        new = SnowpipeStreamOperator(task_id="new", source=replace(typed, conn_id=conn_id), table="T")
        arguments = {argument: conn_id}
        with pytest.warns(
            AirflowProviderDeprecationWarning, match=rf"{type(typed).__name__[:5]}.*conn_id="
        ) as warned:
            old = SnowpipeStreamOperator(task_id="old", source=typed, table="T", **arguments)

        assert warned[0].filename == __file__
        assert old._source()[0] == new._source()[0]
        assert old._source()[1].values == new._source()[1].values != {}

    def test_two_connections_are_refused(self):
        source = KafkaSource(topics=["t"], conn_id="events")
        with pytest.warns(AirflowProviderDeprecationWarning):
            load = SnowpipeStreamOperator(task_id="old", source=source, table="T", kafka_conn_id="others")

        with pytest.raises(ConfigurationError, match="'others'"):
            load._source()

    def test_a_branch_warns_too(self):
        with pytest.warns(AirflowProviderDeprecationWarning, match="KafkaSource"):
            SnowpipeBranchOperator(task_id="b", source="kafka://b:1/t", stream="s", kafka_conn_id="events")

    def test_files_have_none(self):
        load = SnowpipeStreamOperator(task_id="load", source={"path": "/in", "conn_id": "events"}, table="T")

        with pytest.raises(ConfigurationError, match="unknown key 'conn_id'"):
            load._source()


class TestRowPolicyOfOperators:
    @pytest.mark.parametrize(
        "arguments",
        [
            {},
            {"on_error": "continue"},
            {"create_table": "if_missing", "evolve_columns": False, "check_rows": True},
        ],
    )
    def test_single_arguments_are_equivalent(self, arguments):
        single = SnowpipeStreamOperator(task_id="a", source={"path": "/in"}, table="T", **arguments)
        whole = SnowpipeStreamOperator(task_id="b", source={"path": "/in"}, table="T", row_policy=arguments)

        assert single._schema_policy() == whole._schema_policy()
        assert whole._schema_policy().policy == RowPolicy(**arguments)

    @pytest.mark.parametrize("arguments", [{"on_error": "continue"}, {"row_policy": RowPolicy("continue")}])
    def test_they_may_be_default_arguments_of_the_dag(self, arguments):
        with DAG("d", schedule=None, default_args=arguments):
            load = SnowpipeStreamOperator(task_id="load", source={"path": "/in"}, table="T")
            append = SnowpipeAppendRowsOperator(task_id="append", rows=[], table="T")

        assert load._schema_policy().policy == append._schema_policy().policy == RowPolicy("continue")

    def test_both_are_refused(self):
        with pytest.raises(ConfigurationError, match=r"RowPolicy\(on_error='continue'"):
            SnowpipeStreamOperator(
                task_id="a", source={"path": "/in"}, table="T", row_policy=POLICY, on_error="continue"
            )


def test_a_stream_needs_an_order_and_a_bulk_load_refuses_one():
    rows = TableSource(path="/t", format="csv", options={"sep": ";"})

    assert bulk_values(rows) == {"path": "/t", "format": "csv", "options": {"sep": ";"}}
    with pytest.raises(ConfigurationError, match="offset_column is empty"):
        SnowpipeStreamOperator(task_id="a", source=rows, table="T")
    with pytest.raises(ConfigurationError, match="unknown key 'offset_column'"):
        SnowpipeBulkLoadOperator(task_id="a", source=replace(rows, offset_column="ID"), table="T")


@pytest.mark.parametrize("operator", [SnowpipeBulkLoadOperator, SnowpipeBranchOperator])
def test_a_source_that_an_operator_cannot_take_is_refused(operator):
    with pytest.raises(ConfigurationError, match=r"source is .*'/in'"):
        operator(task_id="a", source=FileSource(path="/in"), table="T", **_REQUIRED.get(operator, {}))


_REQUIRED = {SnowpipeBranchOperator: {"stream": "s"}}


@pytest.mark.parametrize("text", ["@stage/path", "{{ source }}", None])
def test_what_is_no_typed_value_stays_as_it_is(text):
    assert stream_values(text) is bulk_values(text) is text
