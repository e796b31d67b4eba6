"""What a running job says of itself."""

from __future__ import annotations

from airflow_provider_snowpipe.spark.progress_lines import Totals


def test_rows_per_second_are_those_since_the_last_look() -> None:
    totals = Totals(0.0)
    totals.take(2.0, 200, 1_000)
    totals.take(4.0, 1_200, 600)

    assert totals.line(1, 3) == (
        "snowpipe progress total done=1/3 rows=1200 rows_per_second=500 bytes_behind<=600 seconds_left<=3"
    )


def test_nothing_is_foretold_from_one_look() -> None:
    totals = Totals(0.0)
    totals.take(2.0, 200, 1_000)

    assert totals.seconds_left() is None
    assert totals.line(0, 1).endswith("seconds_left<=unknown")


def test_nothing_is_foretold_while_nothing_moves() -> None:
    totals = Totals(0.0)
    for second in (2.0, 4.0, 6.0):
        totals.take(second, 0, 1_000)

    assert totals.seconds_left() is None
    assert totals.rate == 0.0
