import json

import pytest

from airflow_provider_snowpipe.spark.report import ChannelReport, RunReport
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

CHANNEL = ChannelReport("p_s_a", "a", None, "a.log:9", "a.log:9", 1, True, rows=9, bytes=90)
REPORT = RunReport("app", (CHANNEL, ChannelReport("p_s_b", "b", None, None, None, 0, True)), 1.5)


def test_report_comes_back_unchanged_from_its_file(tmp_path):
    REPORT.write(tmp_path / "report.json")

    assert RunReport.read(tmp_path / "report.json") == REPORT


def test_failed_run_names_the_error_that_ended_it():
    failed = RunReport("app", (), 0.1, error="3 rows", error_type="RowsRejectedError")

    assert RunReport.from_json(failed.to_json()) == failed


def test_sums_run_over_all_channels():
    assert (REPORT.rows, REPORT.bytes) == (9, 90)


def test_writing_leaves_no_other_file_behind(tmp_path):
    REPORT.write(tmp_path / "report.json")
    REPORT.write(tmp_path / "report.json")

    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_failed_write_keeps_the_old_report_and_no_remains(tmp_path, monkeypatch):
    REPORT.write(tmp_path / "report.json")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))

    with pytest.raises(OSError, match="disk full"):
        RunReport("other", (), 0.0).write(tmp_path / "report.json")

    assert RunReport.read(tmp_path / "report.json") == REPORT
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"report_version": 99}', json.dumps({"report_version": 1, "application": "a", "seconds": 1})],
)
def test_text_that_is_no_report_is_refused(text):
    with pytest.raises(ConfigurationError, match="run report"):
        RunReport.from_json(text)


def test_missing_report_points_to_the_log(tmp_path):
    with pytest.raises(ConfigurationError, match=r"none\.json.*its log shows why"):
        RunReport.read(tmp_path / "none.json")
