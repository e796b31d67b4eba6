"""Topics of a real Apache Kafka broker in real Spark: its own Kafka source, and our stream beside it."""

import pytest

from airflow_provider_snowpipe.spark.source_secrets import SourceSecrets
from airflow_provider_snowpipe.spark.sources import source_spec
from tests.spark_groups import load
from tests.spark_in_process import spark_in_process
from tests.spark_job import SparkJob, ids_in

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from tests.kafka_broker import PASSWORD, USER, KafkaBroker, broker_jars
from tests.kafka_stream import TopicStream
from tests.kafka_topics import create_topic, group_offsets, numbered, produce, transaction
from tests.spark_kafka_jars import spark_kafka_jars
from tests.spark_session import Door

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), broker_jars()) as running:
        yield running


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spark")
    jars = ",".join(map(str, spark_kafka_jars(folder / "jars")))
    with spark_in_process(folder, "local[2,4]", "--jars", jars) as session:
        yield session


@pytest.fixture
def topic(request):
    return "T" + str(abs(hash(request.node.nodeid)) % 10**9)


def test_sparks_own_source_is_chosen_where_its_jars_are_and_loads_the_same_as_the_client_in_turns(
    broker, topic, spark, service_factory, tmp_path, capfd
):
    service = service_factory()
    service.sql(f"CREATE TABLE LOCAL.PUBLIC.{topic} (ID NUMBER, NOTE VARCHAR, META VARIANT)")
    create_topic(broker.address, topic, 2)
    transaction(broker.address, topic, range(0, 500), end="commit")
    transaction(broker.address, topic, range(9000, 9100), end="abort")
    produce(broker.address, topic, numbered(range(500, 1000)), partition=1, headers=[("h", b"v")])
    values = {
        "kind": "kafka",
        "bootstrap_servers": broker.sasl_address,
        "topics": [topic],
        "group_id": f"g-{topic}",
        "reader": "auto",
        "timeout_seconds": 30.0,
        "record_metadata": "META",
        "options": {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER},
    }
    secrets = SourceSecrets({"sasl.password": PASSWORD})
    job = SparkJob(service, tmp_path / "runs", topic, source_spec(values), secrets=secrets)
    capfd.readouterr()

    load(job, spark.sparkContext)

    said = capfd.readouterr()
    assert "snowpipe reader spark" in said.out
    assert PASSWORD not in said.out + said.err
    assert ids_in(service, topic) == list(range(1000))
    assert job.committed("0", "1") == {"0": "499", "1": "499"}
    assert group_offsets(broker.address, f"g-{topic}", topic, 2) == [500, 500]

    produce(broker.address, topic, numbered(range(1000, 1010)), partition=1, headers=[("h", b"v")])
    load(job, spark.sparkContext, source=source_spec({**values, "reader": "client"}))
    assert ids_in(service, topic) == list(range(1010))

    produce(broker.address, topic, numbered(range(1010, 1030)), partition=1, headers=[("h", b"v")])
    run = load(job, spark.sparkContext, source=source_spec({**values, "reader": "spark"}))
    assert [one.rows for one in run.channels] == [0, 20]
    assert ids_in(service, topic) == list(range(1030))
    rows = service.sql(f"SELECT META FROM LOCAL.PUBLIC.{topic} WHERE ID IN (500, 1009) ORDER BY ID")
    by_spark, by_client = (row["META"] for row in rows)
    assert set(by_spark) == set(by_client)
    assert (by_spark["headers"], by_spark["offset"], by_client["offset"]) == ({"h": "v"}, 0, 509)
    assert by_spark["topic"] == by_client["topic"] == topic


def test_stream_leaves_out_aborted_transactions_and_goes_on_where_a_job_has_ended(
    broker, topic, spark, service_factory, tmp_path
):
    service = service_factory()
    door = Door(service, topic, tmp_path / "credentials.json", columns="ID NUMBER, NOTE VARCHAR").create()
    stream = TopicStream(spark, door, broker.address, topic, tmp_path / "checkpoint")
    create_topic(broker.address, topic, 2)
    transaction(broker.address, topic, range(100), end="commit")
    transaction(broker.address, topic, range(9000, 9100), end="abort")
    produce(broker.address, topic, numbered(range(100, 200)), partition=1)

    assert stream.run(groupId=f"g-{topic}") == 200
    assert sorted(door.ids()) == list(range(200))
    assert stream.tokens(2) == ["99", "99"]

    produce(broker.address, topic, numbered(range(200, 210)), partition=1)
    spec = source_spec({"kind": "kafka", "bootstrap_servers": broker.address, "topics": [topic]})
    job = SparkJob(service, tmp_path / "runs", topic, spec, {"channel_prefix": door.prefix})
    run = load(job, spark.sparkContext)
    assert [one.rows for one in run.channels] == [0, 10]
    transaction(broker.address, topic, range(210, 215), end="commit")

    assert stream.run(groupId=f"g-{topic}") == 5
    assert sorted(door.ids()) == list(range(215))
