"""What topics of a real broker hold beyond the tokens of a real service, by every way to ask for it."""

import itertools
import json
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from airflow_provider_snowpipe.cli.definition import parser
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.streaming.errors import OffsetTokenError
from tests.airflow_connections import SetConnection
from tests.kafka_broker import NoidaBroker
from tests.kafka_topics import create_topic, produce, transaction
from tests.local_connection import commit, make_table
from tests.local_service import LocalService

_numbers = itertools.count(1)


class Backlog:
    """A topic of three partitions with ten records each, of which four of the first are in a table."""

    def __init__(self, service: LocalService, broker: NoidaBroker, conn_id: str) -> None:
        self.service, self.broker, self.conn_id = service, broker, conn_id
        number = next(_numbers)
        self.topic, self.table = f"orders{number}", make_table(service, f"BACKLOG{number}")
        self.values = [json.dumps({"ID": row}).encode() for row in range(30)]
        create_topic(broker.address, self.topic, 3)
        produce(broker.address, self.topic, self.values, partition=lambda row: row % 3)
        commit(service, self.table, f"p_{self.topic}_0", ["0", "3"])

    @property
    def source(self) -> dict[str, Any]:
        servers = self.broker.address
        return {
            "kind": "kafka",
            "topics": [self.topic],
            "bootstrap_servers": servers,
            "timeout_seconds": 20.0,
        }

    def load(self, **arguments: Any) -> SnowpipeLoadOperator:
        given = {"source": self.source, "table": self.table, **arguments}
        return SnowpipeLoadOperator(
            task_id="load", snowflake_conn_id=self.conn_id, channel_prefix="p", **given
        )


@pytest.fixture
def backlog(local_service: LocalService, small_broker: NoidaBroker, conn_id: str) -> Backlog:
    return Backlog(local_service, small_broker, conn_id)


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    arguments = parser().parse_args(["plan", *words, "--output", "json"])
    capsys.readouterr()
    arguments.func(arguments)
    return json.loads(capsys.readouterr().out)


class TestCommand:
    def test_what_is_committed_is_no_backlog_and_without_a_table_all_records_are(
        self, backlog: Backlog, set_connection: SetConnection, capsys: pytest.CaptureFixture[str]
    ) -> None:
        address = f"kafka://{backlog.broker.address}/{backlog.topic}"
        options = ("--conn-id", backlog.conn_id, "--table", backlog.table, "--channel-prefix", "p")
        made = plan(capsys, "--from", address, *options, "--freshness", "30")

        assert (made["shape"]["rows"], made["shape"]["partitions"], made["shape"]["freshness"]) == (26, 3, 30)
        size = made["shape"]["bytes"] / made["shape"]["rows"]
        assert min(map(len, backlog.values)) <= size <= max(map(len, backlog.values))
        assert made["plan"]["path"] == "stream"

        host, _, port = backlog.broker.address.partition(":")
        set_connection("brokers", conn_type="kafka", host=host, port=int(port))
        source = json.dumps({"kind": "kafka", "topics": [backlog.topic], "conn_id": "brokers"})
        assert plan(capsys, "--from", source)["shape"]["rows"] == 30


class TestOperators:
    def test_the_load_operator_plans_for_committed_records_that_are_not_loaded(
        self, backlog: Backlog
    ) -> None:
        producer = transaction(backlog.broker.address, backlog.topic, range(100, 105), end="later")
        choice = backlog.load()._choice({"freshness": 60})
        shape = choice.shape
        producer.commit_transaction(30)
        assert (shape.rows, shape.partitions, shape.freshness) == (26, 3, 60)
        assert choice.path() == ("stream", None)
        unmade = backlog.load(table="NOT_YET", create_table="if_missing")._choice({}).shape
        assert unmade.rows == 36  # with the transaction and its marker

    def test_a_token_that_is_no_offset_is_an_error(self, backlog: Backlog) -> None:
        commit(backlog.service, backlog.table, f"p_{backlog.topic}_1", ["a.log:3"])
        with pytest.raises(OffsetTokenError, match="'integer'"):
            _ = backlog.load()._choice({}).shape
