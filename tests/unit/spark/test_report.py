import json
from unittest.mock import MagicMock

import pytest

from airflow_provider_snowpipe.spark.driver import report
from airflow_provider_snowpipe.spark.driver.report import ChannelReport, RunReport
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

CHANNEL = ChannelReport("p_s_a", "a", None, "a.log:9", "a.log:9", 1, True, rows=9, bytes=90)
REPORT = RunReport("app", (CHANNEL, ChannelReport("p_s_b", "b", None, None, None, 0, True)), 1.5)


@pytest.fixture
def folder(tmp_path):
    return report.report_folder(str(tmp_path / "report.json"))


def test_report_comes_back_unchanged_from_its_file_and_leaves_no_other_one_behind(folder, tmp_path):
    for _ in range(2):
        folder.write("report.json", REPORT.to_json())

    assert RunReport.from_json(folder.read("report.json")) == REPORT
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_failed_write_keeps_the_old_report_and_no_remains(folder, tmp_path, monkeypatch):
    folder.write("report.json", REPORT.to_json())
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))

    with pytest.raises(OSError, match="disk full"):
        folder.write("report.json", RunReport("other", (), 0.0).to_json())

    assert RunReport.from_json(folder.read("report.json")) == REPORT
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"report_version": 99}', json.dumps({"report_version": 1, "application": "a", "seconds": 1})],
)
def test_text_that_is_no_report_is_refused(text):
    with pytest.raises(ConfigurationError, match="run report"):
        RunReport.from_json(text)


def test_a_store_that_refuses_reports_its_innermost_reason(monkeypatch):
    from py4j.protocol import Py4JJavaError

    class Thrown:
        def __init__(self, text, cause=None):
            self.text, self.cause = text, cause

        def __str__(self):
            return self.text

        def getCause(self):  # noqa: N802  as Java names it
            return self.cause

    refused = Py4JJavaError.__new__(Py4JJavaError)
    refused.java_exception = Thrown(
        "Error getting 'lake'", Thrown("execution failed", Thrown("403 Forbidden"))
    )
    jvm = MagicMock()
    jvm.org.apache.hadoop.fs.Path.return_value.getFileSystem.side_effect = refused
    monkeypatch.setattr(report, "_jvm", lambda: jvm)

    with pytest.raises(ConfigurationError, match="Error getting 'lake'; 403 Forbidden") as shown:
        report.report_folder("gs://lake/loads/report.json").check()
    assert "execution failed" not in str(shown.value)
