"""Typed sources: the same as their dictionaries, in every operator that takes them; row policies."""

import copy
import json
import pickle
import re
from base64 import b64encode
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from airflow.models.connection import Connection
from airflow.providers.common.compat.sdk import DAG, BaseOperator

from airflow_provider_snowpipe import sources as kinds
from airflow_provider_snowpipe.decorators.append import SnowpipeAppendDecoratedOperator
from airflow_provider_snowpipe.decorators.route import SnowpipeRouteDecoratedOperator
from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.operators.branch import SnowpipeBranchOperator
from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sources import Csv, FileSource, KafkaSource, Ndjson, TableSource
from airflow_provider_snowpipe.spark.driver.plan import JobPlan, RowsToWrite
from airflow_provider_snowpipe.spark.source import SourceSpec
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.spark.submit.source import connected_source
from airflow_provider_snowpipe.streaming.checked_values import RowPolicy
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.airflow_version import AIRFLOW

OUTPUT: Any = BaseOperator(task_id="other").output
POLICY: Any = {"on_error": "dead_letter", "dead_letter_path": "/rejected/{{ x }}", "unknown_columns": "warn"}

# Together the dictionaries of a class have each of its fields with another value than its default.
DICTIONARIES: dict[type[Any], list[dict[str, Any]]] = {
    FileSource: [
        {
            "path": "/in", "pattern": "*.log", "format": {"type": "orc"}, "partitions": {"type": "all"},
            "on_changed_files": "ignore", "log_path": "/logs", "after_commit": "archive",
            "archive_path": "/done", "retention": 60.0, "metadata": {"SRC": "filename"},
        },
        {"path": "/in", "format": {"type": "avro", "columns": ["A"]},
         "partitions": {"type": "key", "key": "day"}},
        {"path": "s3://lake/in", "conn_id": "bucket"},
    ],
    Ndjson: [{"growing": True}, {"compression": "gzip"}],
    kinds.Text: [{"column": "ROW", "compression": "none", "growing": True}],
    Csv: [
        {"columns": ["A"], "header": False, "column_names": ["A", "B"], "delimiter": ";", "quote": "'",
         "escape": "\\", "null_values": ["NULL"], "growing": True},
        {"compression": "zstd"},
    ],
    kinds.Parquet: [{"columns": ["A"], "non_finite": "null", "unknown_types": "ignore"}],
    kinds.Orc: [{"columns": ["A"], "non_finite": "null", "unknown_types": "ignore"}],
    kinds.Avro: [{"columns": ["A"], "non_finite": "null", "unknown_types": "ignore"}],
    kinds.ByDirectory: [{}],
    kinds.ByName: [{"regex": "(?P<partition>[a-z]+).*"}],
    kinds.ByKey: [{"key": "day", "as_columns": True}],
    kinds.AllFiles: [{}],
    KafkaSource: [
        {
            "bootstrap_servers": "k:9092", "topics": ["a", "b"], "start": "timestamp",
            "start_timestamp": "2026-01-31T06:00:00+00:00", "value_column": "V", "connect_envelope": True,
            "metadata": {"O": "offset"}, "record_metadata": "M", "key_format": "bytes", "tombstones": "drop",
            "isolation": "read_uncommitted", "group_id": "g", "timeout_seconds": 5.0,
            "options": {"client.id": "x"}, "conn_id": "events",
        },
        {"bootstrap_servers": "k:9092", "topic_pattern": "o.*", "value_format": "avro",
         "schema_registry_url": "http://r", "connector_name": "shop", "group_id": "connect-shop",
         "unknown_types": "ignore"},
    ],
    TableSource: [
        {"offset_column": "ID", "table": "t", "offset_type": "text", "partition_by": "K"},
        {"offset_column": "ID", "query": "SELECT 1", "name": "q", "ranges": [5, 9]},
        {"offset_column": "ID", "path": "/t", "format": "csv", "options": {"sep": ";"}, "binary": "HEX",
         "non_finite": "null", "explicit_nulls": False, "metadata": {"R": "run_id"}},
    ],
    kinds.DeltaSource: [
        {"order_by": "ID", "path": "/t", "offset_type": "text", "partition_by": "K", "starting_version": 3,
         "binary": "HEX", "non_finite": "null", "explicit_nulls": False, "metadata": {"V": "version"}},
        {"order_by": "ID", "table": "t"},
    ],
    kinds.IcebergSource: [
        {"table": "s.t", "catalog": "c", "options": {"type": "rest"}, "partition_by": "K",
         "starting_snapshot": 9, "binary": "HEX", "non_finite": "null", "explicit_nulls": False,
         "conn_id": "lake", "metadata": {"N": "row"}},
        {"path": "/t"},
    ],
}  # fmt: skip
EACH = [(kind, values) for kind, each in DICTIONARIES.items() for values in each]


@pytest.fixture(autouse=True)
def connections(set_connection: Any) -> None:
    extra = {"bootstrap.servers": "k1:9093", "sasl.password": "hush"}
    set_connection("events", conn_type="kafka", extra=extra)
    set_connection("lake", conn_type="iceberg", host="https://lake", login="me", password="hush")
    set_connection("bucket", conn_type="aws", login="me", password="hush")


def test_every_field_is_in_a_dictionary() -> None:
    for kind, each in DICTIONARIES.items():
        assert {"kind", *(name for one in each for name in one)} >= {one.name for one in fields(kind)}, kind


@pytest.mark.parametrize(("kind", "values"), EACH)
def test_a_value_and_its_dictionary_are_equivalent(kind: Any, values: dict[str, Any]) -> None:
    made = kind(**values)
    written = made.as_json()
    assert {name: one for name, one in written.items() if name not in ("kind", "type")} == values
    assert json.loads(json.dumps(written)) == written
    assert kind.from_mapping(written) == made
    assert copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made  # noqa: S301  its own bytes
    if issubclass(kind, SourceSpec):
        assert source_spec(written) == made
        spec, _ = SnowpipeStreamOperator(task_id="load", source=made, table="T")._source()
        plan = _plan(spec).to_json()
        assert ("conn_id" in plan, JobPlan.from_json(plan).to_json()) == (False, plan)


def _plan(source: SourceSpec) -> JobPlan:
    pipe, prefix = PipeName("D", "S", "P"), source.channel_prefix or "p"
    return JobPlan("a", "https://a", pipe, prefix, source.default_name, source, credentials_path="/c")


def test_a_wrong_value_is_refused_by_its_name_and_what_it_may_be() -> None:
    for make, words in [
        (lambda: KafkaSource(topics=["t"], conn_id="c", start="soon"), "'soon': it must be one of"),
        (lambda: FileSource(path=Path("/in")), "path is PosixPath"),
        (lambda: FileSource(path="/in", format=Ndjson(growing="yes")), "growing is 'yes': it must be bool"),
        (lambda: FileSource(path="/in", format=Csv(columns="A")), "columns is 'A': it must be a list"),
        (lambda: FileSource(path="/in", partitions=Csv()), r"partitions is Csv\(\): it must be one of"),
        (lambda: FileSource(path="{{ x }}", format="{{ y }}"), r"format is '{{ y }}': it must be one of"),
        (lambda: RowPolicy(on_error="skip"), r"on_error is 'skip': it must be one of \['abort'"),
        (lambda: RowPolicy(evolve_columns="yes"), "evolve_columns is 'yes'"),
        (lambda: KafkaSource.from_mapping({"topic": "t"}), r"'topic' \(value 't'\): use .*'topics'"),
        (lambda: FileSource.from_mapping({}), "lacks the key 'path'"),
        (lambda: _plan(KafkaSource(topics=("t",), conn_id="events")), "conn_id is 'events'"),
    ]:
        with pytest.raises(ConfigurationError, match=words):
            make()


def test_the_repr_shows_what_was_given_and_no_secret() -> None:
    url = {"url": "jdbc:x://h/d?user=u&password=hush", "dbPassword": "hush"}
    for value, shown in [
        (KafkaSource(topics=["t"], conn_id="events"), "(topics=('t',), conn_id='events')"),
        # What has the output of another task in it is checked in the task only.
        (
            TableSource(path=OUTPUT, options=url),
            "{'url': 'jdbc:x://h/d?user=u&password=…', 'dbPassword': '…'}",
        ),
        (kinds.IcebergSource(table=OUTPUT, options={"uri": "a://me:hush@h/d"}), "{'uri': 'a://…@h/d'}"),
    ]:
        assert shown in repr(value)
        assert "hush" not in repr(value)


JDBC = {"kind": "table", "offset_column": "ID", "path": "/t", "format": "jdbc"}
KAFKA = {"kind": "kafka", "bootstrap_servers": "k:9092", "topics": ["t"]}
ICEBERG = {"kind": "iceberg", "table": "s.t"}
SECRET_URLS = [
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
]
SECRET_TABLES = [
    "Bearer hush-hush-hush",
    "Authorization: basic aHVzaDpodXNo",
    "-----BEGIN RSA PRIVATE KEY-----\nhush\n-----END RSA PRIVATE KEY-----",
    '{"type": "service_account", "private_key": "hush"}',
    b64encode(b'{"type": "service_account", "private_key": "hush, hush, hush"}').decode(),
    b64encode(b"-----BEGIN PRIVATE KEY-----\nhush hush hush\n").decode(),
    jwt.encode({"sub": "hush", "exp": 1}, "k" * 32),
    "ghp_hushhushhushhushhush",
    "(SELECT 1); ALTER USER u IDENTIFIED BY 'hush'",
    '(SELECT 1); ALTER USER u IDENTIFIED BY "hush"',
    "(SELECT 1); SET PASSWORD FOR u = 'hush'",
    "(SELECT 1); SET s3_secret_access_key='hush'",
    "(SELECT 1); CREATE SECRET s (TYPE S3, SECRET 'hush')",
    "(SELECT 1); COPY t FROM 's' CREDENTIALS 'aws_access_key_id=i;aws_secret_access_key=hush'",
    '[{"password": "hush"}]',
    "AKIAIOSFODNN7EXAMPLE:hush/hush",
    "sk-hushhushhushhushhushhush",
    "Server=h;PWD = hush;",
    "https://h/#access_token=hush",
    'jdbc:oracle:thin:u/"hush@h"@h',
    "u:hush@h:9092",
    "{{ conn.c.login }}:{{ conn.c.hush }}@h",
]
SECRET_OPTIONS = [  # the format of a table, and the name of an option
    *[("jdbc", key) for key in ("key", "jwt", "bearer", "prepareQuery", "sessionInitStatement")],
    *[("jdbc", "accountKey"), ("jdbc", "sfPassword"), ("mongodb", "connection.uri"), ("csv", "url")],
    *[("es", "es.net.http.auth.pass"), ("es", "es.nodes"), ("bigquery", "credentials")],
    ("com.example.Reader", "cloud.auth.pass"),
]
SECRETS_OF_KAFKA = {
    "sasl.jaas.config": "hush",
    "sasl.password": "hush",
    "schema.registry.basic.auth.user.info": "u:hush",
    "sasl.oauthbearer.token.endpoint.url": "https://u:hush@h/token",
    "sasl.oauthbearer.extensions": "token=hush",
    "ssl.certificate.pem": "-----BEGIN EC PRIVATE KEY-----\nhush",
}
SECRETS_OF_ICEBERG = {
    "header.X-Api": "hush",
    "header.Authorization": "Bearer hush",
    "gcs.session-kwargs": "hush",
    "auth": "hush",
    "credential": "me:hush",
    "token": "hush",
    "uri": "postgresql+psycopg2://u:hush@h/d",
    "adls.account-key": "hush",
    "adls.connection-string": "AccountName=a;AccountKey=hush",
}
SECRETS_IN_SOURCES = [
    *({**JDBC, "options": {"dbtable": "t", "url": url}} for url in SECRET_URLS),
    *({**JDBC, "options": {"dbtable": value}} for value in SECRET_TABLES),
    *({**JDBC, "format": name, "options": {key: "hush"}} for name, key in SECRET_OPTIONS),
    *({**KAFKA, "options": {key: value}} for key, value in SECRETS_OF_KAFKA.items()),
    *({**ICEBERG, "options": {key: value}} for key, value in SECRETS_OF_ICEBERG.items()),
    {**JDBC, "options": {"kafka.sasl.jaas.config": 'x required username="u" password="hush";'}},
    {**JDBC, "path": "https://h/t.parquet?sv=1&sig=hush"},
    {**JDBC, "path": "s3a://KEY:hu/hush@b/t"},
    {**JDBC, "options": {}, "path": "u:hush@h"},
    {"kind": "files", "path": "s3://KEY:hush@b/t"},
    {"kind": "files", "path": "/in", "log_path": "s3://KEY:hush@b/t"},
    {"kind": "delta", "order_by": "ID", "path": "s3a://KEY:hush@b/t"},
    {"kind": "iceberg", "path": "https://KEY:hush@b/t"},
    {**KAFKA, "schema_registry_url": "https://u:hush@r/x"},
    {**KAFKA, "options": '{"sasl.password": "hush"}'},
    {**KAFKA, "bootstrap_servers": "u:hush@h"},
    {**KAFKA, "bootstrap_servers": "k1:9092, u:hush@k2:9092"},
]


@pytest.mark.parametrize("values", SECRETS_IN_SOURCES, ids=lambda values: f"{values['kind']}")
def test_a_secret_in_a_source_is_refused_and_not_repeated(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"secret|password|Kafka|object") as refused:
        source_spec(values)
    assert "hush" not in str(refused.value)


def test_a_source_without_a_secret_is_taken() -> None:
    for values in [
        {**JDBC, "options": {"url": "jdbc:postgresql://h:5432/d?user=me@corp&sslkey=/k", "fetchSize": "9"}},
        {**JDBC, "options": {"url": "jdbc:sqlserver://h:1433;user=me@corp;trustServerCertificate=true"}},
        {**JDBC, "options": {"url": "jdbc:mysql://h1:3306,h2:3306/d?useAccessToken=true&user=a@b"}},
        {**JDBC, "options": {"query": "SELECT * FROM t WHERE token='x' AND (password=1)"}},
        {**JDBC, "options": {"query": "SELECT a:b AS c, 'x:y@z', 'Bearer' FROM t -- basic"}},
        {**JDBC, "format": "{{ params.format }}", "options": {"any": "x"}},
        {**JDBC, "format": "avro", "options": {"avroSchema": '{"type": "record", "name": "token"}'}},
        {**JDBC, "path": "/data/with/" + "a" * 61},
        {**JDBC, "path": "eyA" + "a" * 62},
        {**JDBC, "path": "abfss://container@account.dfs.core.windows.net/t"},
        {**JDBC, "path": "hdfs://h:8020/t/token=5/a@b"},
        {**KAFKA, "options": {"sasl.oauthbearer.token.endpoint.url": "https://h/token"}},
        {**ICEBERG, "options": {"uri": "http://[::1]:8181/a@b", "rest.authorization-url": "https://h/x"}},
    ]:
        assert source_spec(values)


URIS = {"oauth2-server-uri": "https://u:hush@h/o", "adls.account-key": "hush"}
OF_REGISTRY = {"schema.registry.url": "https://me:hus%68@r/x", "ssl.key.pem": "hush"}


def test_a_secret_of_a_connection_is_in_no_plan() -> None:
    for values, connection, extra, found in [
        (
            {"kind": "kafka", "topics": ["t"]},
            {"host": "k", "password": "hush"},
            OF_REGISTRY,
            {
                "sasl.password": "hush",
                "schema.registry.basic.auth.user.info": "me:hush",
                "ssl.key.pem": "hush",
            },
        ),
        (ICEBERG, {"host": "h", "login": "me", "password": "hush"}, URIS, {**URIS, "credential": "me:hush"}),
        (ICEBERG, {}, {"uri": "mysql://u:hush@h/d"}, {"uri": "mysql://u:hush@h/d"}),
    ]:
        connected = Connection(conn_id="c", conn_type="x", **connection, extra=json.dumps(extra))
        spec, secrets = connected_source({**values, "conn_id": "c"}, lambda _, found=connected: found)
        plan = _plan(spec)
        assert secrets.values == found
        for text in (plan.to_json(), repr(plan), repr(spec), spec.address, repr(secrets)):
            assert not re.search("hus(h|%68)", text)


class TestInTasks:
    def test_templates_are_rendered_and_a_shared_value_stays(self) -> None:
        source = KafkaSource(conn_id="{{ c }}", topics=["{{ t }}"], options={"client.id": "{{ t }}"},
                             start="timestamp", start_timestamp="{{ at }}")  # fmt: skip
        before = copy.deepcopy(source)
        with DAG("d", schedule=None):
            tasks = [
                SnowpipeStreamOperator(task_id=name, source=source, table="T", **POLICY)
                for name in ("orders", "clicks")
            ]

        for task in tasks:
            topic, at = task.task_id, "2026-01-31T06:00:00Z"
            _render(task, c="events", t=topic, at=at, x=topic)
            spec, secrets = task._source()
            assert isinstance(spec, KafkaSource)
            assert (spec.bootstrap_servers, spec.topics, spec.options, spec.start_timestamp) == (
                *("k1:9093", (topic,), {"client.id": topic}, at),
            )
            assert secrets.values == {"sasl.password": "hush"}
            policy = {**POLICY, "dead_letter_path": f"/rejected/{topic}"}
            assert task._schema_policy().policy == RowPolicy(**policy)
        assert source == before

    def test_templates_of_nested_values_are_rendered(self) -> None:
        form, partitions = Csv(delimiter="{{ d }}", columns=["{{ c }}"]), kinds.ByKey("{{ k }}")
        typed = FileSource("/in", format=form, partitions=partitions)
        rendered = FileSource("/in", format=Csv(delimiter=";", columns=("A",)), partitions=kinds.ByKey("day"))
        for source in (typed, typed.as_json(), {"path": "/in", "format": form, "partitions": partitions}):
            load = SnowpipeStreamOperator(task_id="load", source=source, table="T")
            _render(load, d=";", c="A", k="day")
            assert load._source()[0] == rendered

    def test_what_a_template_gives_is_checked_in_the_task(self) -> None:
        source = KafkaSource(conn_id="events", topics=["t"], start="timestamp", start_timestamp="{{ at }}")
        load = SnowpipeStreamOperator(task_id="load", source=source, table="T")
        _render(load, at="yesterday")
        with pytest.raises(ConfigurationError, match="yesterday"):
            load._source()

    def test_the_output_of_another_task_makes_it_an_upstream_task(self) -> None:
        with DAG("d", schedule=None):
            form: Any = Ndjson(growing=BaseOperator(task_id="before").output)  # type: ignore[arg-type]
            source = FileSource(path="/in", format=form)
            load = SnowpipeStreamOperator(task_id="load", source=source, table="T")
        assert load.upstream_task_ids == {"before"}

    def test_every_operator_takes_them(self) -> None:
        files, topics = FileSource(path="/in"), KafkaSource(conn_id="events", topics=["t"])

        load = SnowpipeLoadOperator(task_id="load", source=files, table="T", **POLICY)
        append = SnowpipeAppendRowsOperator(task_id="append", rows=[], table="T", **POLICY)
        decorated = SnowpipeAppendDecoratedOperator(task_id="f", python_callable=list, table="T", **POLICY)
        branch = SnowpipeBranchOperator(task_id="branch", source=topics, stream="load")
        bulk = SnowpipeBulkLoadOperator(task_id="bulk", source=TableSource(query="SELECT 1"), table="T")

        assert load.source_files() == files
        assert [one._schema_policy().policy for one in (load, append, decorated)] == [RowPolicy(**POLICY)] * 3
        assert branch.source == topics.as_json()
        assert bulk._rows() == RowsToWrite(query="SELECT 1")

    def test_a_function_may_return_one_to_route_by(self, monkeypatch: pytest.MonkeyPatch) -> None:
        topics = KafkaSource(conn_id="events", topics=["t"])
        route = SnowpipeRouteDecoratedOperator(task_id="r", python_callable=lambda: topics, stream="load")
        seen: list[Any] = []
        monkeypatch.setattr(SnowpipeBranchOperator, "choose_branch", lambda self, _: seen.append(self.source))
        route.choose_branch({})  # type: ignore[typeddict-item]
        assert seen == [topics.as_json()]

    def test_a_mapped_task_takes_them(self) -> None:
        sources = [KafkaSource(conn_id="events", topics=[topic]) for topic in ("a", "{{ t }}")]
        partial = SnowpipeStreamOperator.partial
        with DAG("d", schedule=None) as dag:
            mapped = partial(task_id="load", table="T", **POLICY).expand(source=sources)
            partial(task_id="others", source=sources[0], on_error="continue").expand(table=["T", "U"])
        _written(dag)
        if AIRFLOW >= (3, 0):
            load: Any = mapped.unmap({"source": sources[1]})  # type: ignore[attr-defined]
            _render(load, t="b", x="y")
            assert load._source()[0].topics == ("b",)
            assert load.dead_letter_path == "/rejected/y"


def _render(task: Any, **context: Any) -> None:
    task.render_template_fields(context)


def _written(dag: DAG) -> dict[str, Any]:
    """The DAG as Airflow stores it, which the scheduler can read again."""
    if AIRFLOW >= (3, 2):
        from airflow.serialization.serialized_objects import DagSerialization
    else:
        from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization
    written: dict[str, Any] = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    assert set(DagSerialization.from_dict(written).task_dict) == set(dag.task_dict)
    return written["dag"]["tasks"]  # type: ignore[no-any-return]


def test_files_of_a_directory_have_no_connection() -> None:
    load = SnowpipeStreamOperator(task_id="load", source={"path": "{{ p }}", "conn_id": "events"}, table="T")
    _render(load, p="/in")
    with pytest.raises(ConfigurationError, match="directory"):
        load._source()


def test_the_policy_for_rows_may_be_default_arguments_and_is_checked_where_the_operator_is_made() -> None:
    with DAG("d", schedule=None, default_args={"on_error": "continue"}):
        load = SnowpipeStreamOperator(task_id="load", source={"path": "/in"}, table="T")
        append = SnowpipeAppendRowsOperator(task_id="append", rows=[], table="T")
    assert load._schema_policy().policy == append._schema_policy().policy == RowPolicy("continue")
    with pytest.raises(ConfigurationError, match="dead_letter_path"):
        SnowpipeStreamOperator(task_id="a", source={"path": "/in"}, table="T", on_error="dead_letter")


def test_a_stream_needs_an_order_and_a_bulk_load_refuses_one() -> None:
    rows = TableSource(path="/t", format="csv", options={"sep": ";"})
    assert kinds.bulk_values(rows) == {"path": "/t", "format": "csv", "options": {"sep": ";"}}
    with pytest.raises(ConfigurationError, match="offset_column is empty"):
        SnowpipeStreamOperator(task_id="a", source=rows, table="T")
    with pytest.raises(ConfigurationError, match="unknown key 'offset_column'"):
        SnowpipeBulkLoadOperator(task_id="a", source=replace(rows, offset_column="ID"), table="T")


@pytest.mark.parametrize(
    ("operator", "more"), [(SnowpipeBulkLoadOperator, {}), (SnowpipeBranchOperator, {"stream": "s"})]
)
def test_a_source_that_an_operator_cannot_take_is_refused(operator: Any, more: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"source is .*'/in'"):
        operator(task_id="a", source=FileSource(path="/in"), table="T", **more)
