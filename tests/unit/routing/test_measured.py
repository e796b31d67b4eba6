"""What the last loads of a table took becomes the floor of the next plan."""

from airflow_provider_snowpipe.routing.load_plan import (
    ENOUGH,
    MOST_KEPT,
    LoadPath,
    MeasuredLoad,
    kept_loads,
    measured_floors,
    measured_latency,
)

PIPE, COPY = LoadPath.PIPE, LoadPath.COPY


def load(latency, path=PIPE, table="T"):
    return MeasuredLoad(table, path, 200.0, latency)


def test_loads_are_json_and_back_and_what_is_no_load_is_left_out():
    loads = (load(150.0), MeasuredLoad("T", COPY, 9.0, 8.0, 0.01, "warehouse seconds", "tag", 1.7e9))
    assert kept_loads([one.as_json() for one in loads], "T") == loads
    other = {**load(1.0).as_json(), "path": "train"}
    assert [kept_loads(kept, "T") for kept in (None, "text", [1], [{"path": "pipe"}], [other])] == [()] * 5


def test_the_last_loads_of_the_table_are_kept():
    kept = [load(float(n), table="ABT"[n % 3]).as_json() for n in range(3 * MOST_KEPT + 30)]
    found = kept_loads(kept, "T")
    assert len(found) == MOST_KEPT
    assert {one.table for one in found} == {"T"}
    assert found[-1].latency == kept[-1]["latency"]


def test_a_floor_is_the_median_of_loads_enough():
    loads = [load(140.0), load(150.0), load(900.0)]
    assert measured_floors([*loads, load(5.0, COPY)]) == {PIPE: 150.0}
    assert measured_floors(loads[: ENOUGH - 1]) == measured_floors([load(None), *loads[1:]]) == {}


def test_latency_is_what_the_volume_does_not_explain():
    for seconds, took, latency in [(100.0, 160.0, 150.0), (1090.0, 500.0, 90.0), (1090.0, 20.0, 20.0)]:
        assert measured_latency({"seconds": seconds, "latency": 90.0}, took) == latency
