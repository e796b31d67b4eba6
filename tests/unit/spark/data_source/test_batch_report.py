from pathlib import Path

import pytest

from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.data_source.source import (
    _check_report_path,
    _report_batch,
    _report_failure,
)
from airflow_provider_snowpipe.spark.driver.report import ChannelReport, RunReport
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, ContinuityError

CHANNELS = (
    ChannelReport(
        *("ds_0", "ds_0", None, "a", "a", 1, True, 40),
        rows=5,
        bytes=50,
        append_seconds=0.25,
        commit_seconds=1.0,
        retries=2,
        dead_lettered=3,
    ),
    ChannelReport(
        *("ds_1", "ds_1", None, "b", "b", 0, True),
        rows=7,
        bytes=70,
        append_seconds=0.5,
        commit_seconds=0.125,
        retries=1,
    ),
)


@pytest.fixture
def options(tmp_path):
    return WriteOptions.parse(
        {
            "accountUrl": "https://a.b.c",
            "database": "D",
            "schema": "S",
            "table": "T",
            "channelPrefix": "ds",
            "partitions": "2",
            "reportPath": str(tmp_path / "report.json"),
        }
    )


def test_batch_without_rows_leaves_the_last_report(options, capsys):
    _report_batch(options, "batch=5", CHANNELS)
    _report_batch(options, "batch=6", ())

    assert RunReport.from_json(Path(options.report_path).read_text()).application == "ds batch=5"
    assert "batch=6" not in capsys.readouterr().err


def test_refused_batch_leaves_its_error(options):
    _report_failure(options, "batch=5", ContinuityError("two writers"))

    report = RunReport.from_json(Path(options.report_path).read_text())
    assert (report.error_type, report.error, report.channels) == ("ContinuityError", "two writers", ())


def test_report_that_cannot_be_written_does_not_undo_a_commit(options, capsys, tmp_path):
    (tmp_path / "report.json").mkdir()

    _report_batch(options, "batch=5", CHANNELS)

    assert "snowpipe report cannot be written to" in capsys.readouterr().err


def test_path_of_the_report_is_checked_before_any_row_moves(tmp_path):
    _check_report_path(None)
    _check_report_path(str(tmp_path / "report.json"))
    with pytest.raises(ConfigurationError, match=r"reportPath is '.*report\.json': its directory"):
        _check_report_path(str(tmp_path / "none" / "report.json"))
