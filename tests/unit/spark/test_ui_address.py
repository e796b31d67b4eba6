"""Where an application's page is, by Spark's own settings."""

from __future__ import annotations

import pytest

from airflow_provider_snowpipe.spark.driver.report import UiAddresses

OWN = "http://driver:4040"
LOGGED = {"spark.eventLog.enabled": "true"}


@pytest.mark.parametrize(
    ("own", "settings", "running", "ended"),
    [
        pytest.param(OWN, {}, OWN, None, id="plain"),
        pytest.param(None, {}, None, None, id="switched off"),
        pytest.param(
            OWN,
            {"spark.ui.reverseProxy": "true", "spark.ui.reverseProxyUrl": "https://hub/spark/"},
            "https://hub/spark/proxy/app-1/",
            None,
            id="behind the master's proxy",
        ),
        pytest.param(OWN, {"spark.ui.reverseProxyUrl": "https://hub"}, OWN, None, id="proxy not used"),
        pytest.param(
            OWN,
            {**LOGGED, "spark.yarn.historyServer.address": "history:18080"},
            OWN,
            "http://history:18080/history/app-1/",
            id="history server of YARN",
        ),
        pytest.param(
            None,
            {**LOGGED, "spark.master.ui.historyServerUrl": "https://history/"},
            None,
            "https://history/history/app-1/",
            id="history server of a standalone master",
        ),
        pytest.param(
            OWN, {"spark.yarn.historyServer.address": "history:18080"}, OWN, None, id="no event log"
        ),
        pytest.param(
            OWN,
            {**LOGGED, "spark.yarn.historyServer.address": "${hadoopconf-rm}:18080"},
            OWN,
            None,
            id="not filled in",
        ),
        pytest.param("javascript:alert(1)", {}, None, None, id="no page at all"),
    ],
)
def test_addresses_come_from_the_settings(
    own: str | None, settings: dict[str, str], running: str | None, ended: str | None
) -> None:
    assert UiAddresses.of_settings(own, "app-1", settings.get) == UiAddresses(running, ended)
