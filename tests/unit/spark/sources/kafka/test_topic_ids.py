"""The ids of topics, which are kept in the pipe and compared when a run starts."""

import time

import pytest

from airflow_provider_snowpipe.spark.sources.kafka.cluster import Bounds, ClientSettings
from airflow_provider_snowpipe.spark.sources.kafka.reader import KafkaPartition, check_topic_ids, id_channel
from airflow_provider_snowpipe.spark.sources.kept_ids import KeptIds, SourceId
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.errors import (
    OffsetTokenMovedError,
    SourcePositionError,
    SourceUnavailableError,
)
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset

ID_CHANNEL = "SHOP_t__topic_id"
OLD, NEW = "old-id", "new-id"


def _partition(number, topic="t", on_data_loss="fail"):
    spec = source_spec({"kind": "kafka", "bootstrap_servers": "k:1", "topics": [topic]})
    settings = ClientSettings(spec)
    return KafkaPartition(
        f"{topic}_{number}", topic, number, 0, Bounds(0, 9, 9), spec, settings, on_data_loss
    )


def _check(snowpipe, now, committed="49", on_data_loss="fail"):
    partitions = {f"SHOP_t_{number}": _partition(number) for number in range(2)}
    offsets = {
        "SHOP_t_0": None,
        "SHOP_t_1": None if committed is None else IntegerOffset.parse(committed, channel=""),
    }
    with snowpipe.client() as client:
        check_topic_ids(client, on_data_loss, partitions, offsets, {"t": now})


def _kept(snowpipe, **state):
    return snowpipe.channel(ID_CHANNEL, created_on_ms=int(time.time() * 1000), **state)


@pytest.mark.parametrize("committed", [None, "49"], ids=["first run ever", "taken over from the connector"])
def test_first_run_keeps_the_id_beside_the_tokens_and_the_next_one_finds_it(snowpipe, committed):
    _check(snowpipe, OLD, committed)
    assert snowpipe.channels[ID_CHANNEL].committed == OLD
    snowpipe.channels[ID_CHANNEL].created_on_ms = int(time.time() * 1000)
    snowpipe.calls.clear()

    _check(snowpipe, OLD)

    assert snowpipe.did() == ["hostname", "token", f"status {ID_CHANNEL}"], (
        "what is known is not written again"
    )


def test_topic_that_was_made_again_is_refused_with_both_ids_until_somebody_decides(snowpipe, caplog):
    _kept(snowpipe, committed=OLD)

    for _ in range(2):
        with pytest.raises(SourcePositionError, match="channel_prefix") as caught:
            _check(snowpipe, NEW)
        words = {word.strip("',:()") for word in str(caught.value).split()}
        assert {OLD, NEW, "49", "SHOP_t_1", ID_CHANNEL} <= words
    assert (snowpipe.did("open"), snowpipe.channels[ID_CHANNEL].committed) == ([], OLD)

    _check(snowpipe, NEW, on_data_loss="skip")
    assert OLD in caplog.text
    assert NEW in caplog.text
    assert snowpipe.channels[ID_CHANNEL].committed == NEW
    _check(snowpipe, NEW)


def test_topic_whose_channels_were_dropped_begins_anew_under_its_new_id(snowpipe):
    _kept(snowpipe, committed=OLD)

    _check(snowpipe, NEW, committed=None)

    assert snowpipe.channels[ID_CHANNEL].committed == NEW


def test_brokers_without_ids_are_named_once_and_never_replace_a_known_id(snowpipe, caplog):
    _check(snowpipe, None)
    own = [one for one in caplog.records if one.name.startswith("airflow_provider")]
    assert [one.levelname for one in own] == ["WARNING"]
    assert "t" in own[0].getMessage()
    assert snowpipe.channels == {}

    _kept(snowpipe, committed=OLD)
    with pytest.raises(SourceUnavailableError, match=rf"{OLD}.*Nothing was sent\. Run again;.*on_data_loss"):
        _check(snowpipe, None)
    _check(snowpipe, None, on_data_loss="skip")
    assert snowpipe.channels[ID_CHANNEL].committed == OLD


def test_each_topic_is_compared_with_its_own_id(snowpipe, caplog):
    partitions = {f"SHOP_{topic}_0": _partition(0, topic) for topic in ("t", "u", "v", "w")}
    committed = dict.fromkeys(partitions, IntegerOffset.parse("49", channel=""))
    _kept(snowpipe, committed=OLD)
    snowpipe.channel("SHOP_u__topic_id", committed="u-id", created_on_ms=int(time.time() * 1000))
    with snowpipe.client() as client:
        ids = {"t": OLD, "u": "u-id", "v": None, "w": None}

        check_topic_ids(client, "fail", partitions, committed, ids)
        with pytest.raises(SourcePositionError, match=r"'u'.*'u-id'.*'other'"):
            check_topic_ids(client, "fail", partitions, committed, {**ids, "u": "other"})

    assert (snowpipe.did("open"), sorted(snowpipe.channels)) == ([], [ID_CHANNEL, "SHOP_u__topic_id"])
    assert "topic v and 1 more:" in caplog.text


def test_kept_id_is_renewed_before_the_service_drops_a_channel_without_rows(snowpipe):
    snowpipe.channel(ID_CHANNEL, committed=OLD, created_on_ms=int((time.time() - 8 * 24 * 3600) * 1000))

    _check(snowpipe, OLD)

    assert snowpipe.did("drop") == [f"drop {ID_CHANNEL}"]
    assert snowpipe.channels[ID_CHANNEL].committed == OLD


def test_ids_channel_is_no_partitions_and_fits_the_limit_of_names():
    assert id_channel("SHOP_t_1", _partition(1)) == ID_CHANNEL
    long = "x" * 249
    names = {id_channel(f"{prefix}_{long}_7", _partition(7, long)) for prefix in ("SHOP", "SHOPS")}
    assert len(names) == 2
    assert max(map(len, names)) <= 255


def test_the_next_record_of_a_partition_is_known_without_a_task():
    assert _partition(0).is_quick(None)
    assert _partition(0).is_quick(IntegerOffset(7))


def test_id_that_another_run_keeps_at_the_same_time_is_no_error(snowpipe, monkeypatch):
    with snowpipe.client() as client:
        ask = client.channel_statuses

        def before_the_other(names):
            monkeypatch.setattr(client, "channel_statuses", ask)
            found = ask(names)
            _kept(snowpipe, committed=other)
            return found

        for other, now in ((OLD, OLD), (NEW, OLD)):
            snowpipe.channels.clear()
            monkeypatch.setattr(client, "channel_statuses", before_the_other)
            ids = KeptIds(client, "fail")
            if other == now:
                ids.check([SourceId("topic 't'", ID_CHANNEL, now)])
            else:
                with pytest.raises(OffsetTokenMovedError, match=NEW):
                    ids.check([SourceId("topic 't'", ID_CHANNEL, now)])
            assert snowpipe.channels[ID_CHANNEL].committed == other
