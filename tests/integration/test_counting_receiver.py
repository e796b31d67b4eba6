"""The receiver of the benchmarks takes what our channel and the official SDK send, and counts every row."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from benchmarks.receiver_process import Receiver
from benchmarks.rows import SHAPES
from benchmarks.spark_loads import TABLE, sdk_append
from tests.checkpoints import source_of


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    running = Receiver(tmp_path_factory.mktemp("receiver") / "data")
    yield running
    running.stop()


def _send(receiver: Receiver, channel: str, ids: list[int]) -> None:
    with (
        receiver.client(TABLE) as client,
        Channel.open(client, channel, source_of(IntegerOffset), gaps_legal=True) as opened,
    ):
        for position, number in enumerate(ids):
            body = json.dumps({"ID": number, "NOTE": "x"}).encode() + b"\n"
            opened.append(body, IntegerOffset(position), IntegerOffset(position), rows=1)
        opened.wait_for_commit(timeout=30)


def test_rows_of_our_channel_are_counted_once_and_in_order(receiver: Receiver) -> None:
    _send(receiver, "ours_a", list(range(0, 50)))
    _send(receiver, "ours_b", list(range(50, 80)))
    found = receiver.require(80)
    assert (found.rows, found.distinct, found.ordered) == (80, 80, True)
    assert found.raw_bytes == sum(len(json.dumps({"ID": n, "NOTE": "x"})) + 1 for n in range(80))


def test_rows_of_the_official_sdk_are_counted_in_its_file_mode(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(receiver.ca_file))
    rows = [[{"ID": number, "NOTE": "x" * 1000} for number in range(at, at + 1000)] for at in (0, 1000)]
    sdk_append(receiver.sdk_properties(), "sdk", rows)
    found = receiver.require(2000)
    assert found.raw_bytes > 1 << 20, "as much as the SDK uploads as a file"


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param([0, 1, 1], id="doubled"),
        pytest.param([0, 2, 1], id="out_of_order"),
        pytest.param([0, 1], id="missing"),
    ],
)
def test_rows_that_are_not_there_once_and_in_order_are_no_result(receiver: Receiver, ids: list[int]) -> None:
    _send(receiver, "wrong", ids)
    with pytest.raises(SystemExit, match="no result"):
        receiver.require(3)


@pytest.mark.parametrize("name", SHAPES)
def test_rows_of_a_shape_have_the_size_that_it_declares(name: str) -> None:
    from airflow_provider_snowpipe.streaming.ndjson import encode_ndjson

    shape = SHAPES[name]
    made = list(shape.make(30))
    assert [row["ID"] for batch in made for row in batch.select(["ID"]).to_pylist()] == list(range(30))
    size = sum(len(encode_ndjson(batch)) for batch in made) / 30
    assert 0.7 * shape.row_bytes < size < 1.3 * shape.row_bytes
