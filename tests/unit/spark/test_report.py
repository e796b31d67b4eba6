"""The reports of both jobs, and the addresses that they name."""

import json

import pytest

from airflow_provider_snowpipe.bulk.run_files import WrittenFile
from airflow_provider_snowpipe.spark.driver import report
from airflow_provider_snowpipe.spark.driver.plan import WriteReport
from airflow_provider_snowpipe.spark.driver.report import ChannelReport, RunReport, UiAddresses
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

CHANNEL = ChannelReport("p_s_a", "a", None, "a.log:9", "a.log:9", 1, True, rows=9, bytes=90)
REPORT = RunReport("app", (CHANNEL, ChannelReport("p_s_b", "b", None, None, None, 0, True)), 1.5)


def test_report_comes_back_unchanged_and_a_failed_write_keeps_the_old_one(tmp_path, monkeypatch):
    folder = report.report_folder(str(tmp_path / "report.json"))
    for _ in range(2):
        folder.write("report.json", REPORT.to_json())
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        folder.write("report.json", RunReport("other", (), 0.0).to_json())
    assert RunReport.from_json(folder.read("report.json")) == REPORT
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_report_of_written_files_comes_back_unchanged():
    files = (WrittenFile("cut/x", 10, 3),)
    written = WriteReport("app", "file:///shared/a1", "a1", files, ("ID",), (), 1.5)
    assert WriteReport.from_json(written.to_json()) == written
    assert (written.rows, written.bytes) == (3, 10)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"report_version": 99}', json.dumps({"report_version": 1, "application": "a", "seconds": 1})],
)
def test_text_that_is_no_report_is_refused(text):
    with pytest.raises(ConfigurationError, match="run report"):
        RunReport.from_json(text)


def test_addresses_of_an_applications_page_come_from_sparks_own_settings():
    own, logged = "http://driver:4040", {"spark.eventLog.enabled": "true"}
    proxy = {"spark.ui.reverseProxyUrl": "https://hub/spark/"}
    yarn, master = "spark.yarn.historyServer.address", "spark.master.ui.historyServerUrl"
    for page, settings, running, ended in [
        (own, {}, own, None),
        (None, {}, None, None),
        (own, {"spark.ui.reverseProxy": "true", **proxy}, "https://hub/spark/proxy/app-1/", None),
        (own, proxy, own, None),
        (own, {**logged, yarn: "history:18080"}, own, "http://history:18080/history/app-1/"),
        (None, {**logged, master: "https://history/"}, None, "https://history/history/app-1/"),
        (own, {yarn: "history:18080"}, own, None),
        (own, {**logged, yarn: "${hadoopconf-rm}:18080"}, own, None),
        ("javascript:alert(1)", {}, None, None),
    ]:
        found = UiAddresses.of_settings(page, "app-1", settings.get)
        assert found == UiAddresses(running, ended), settings
