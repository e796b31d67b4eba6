"""The connection form and Snowpipe's pages in Chromium, with a past that nobody has to wait for, at night.

Daily, ``unit/plugins`` asks for the pages, and ``unit/hooks`` for the Test button. The pictures of the docs
are made here: ``SNOWPIPE_PICTURES=docs/pictures`` sets where they go.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import browser
import pytest
from browser import DIALOG, Pages
from sqlalchemy import create_engine

from demo.airflow_processes import AirflowProcesses
from tests.airflow_tables import PLAN, AirflowTables, page_address, streamed
from tests.airflow_version import AIRFLOW
from tests.local_connection import commit, make_table
from tests.local_service import LocalService

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.nightly,
    pytest.mark.skipif(AIRFLOW < (3, 1), reason="Airflow 2 has no such pages"),
    pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing())),
]
TOAST = "//*[@data-scope='toast' and @data-part='root']"
LABELS = ("Account URL", "Port", "User", "Token or key passphrase", "Schema")
EXTRA_LABELS = ("Account", "Authentication", "Private key (text)", "Warehouse", "OAuth grant")
ASIDE = {"where": "orders_eu", "position": "f:7", "reason": "no number", "text": '{"ID": "<b>x</b>"}'}
UNLOADED = {"path": "/data/rejected/orders", "run": "app", "rows": [ASIDE]}
FOURTH_CHART = "(//*[local-name()='svg'][@role='img'])[4]"


class ApiServer(AirflowProcesses):
    """Airflow's API server alone."""

    components = ("metadatabase",)

    def _commands(self) -> dict[str, list[str]]:
        return {"api-server": super()._commands()["api-server"]}

    def _serves_tasks(self) -> bool:
        return True


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, local_service: LocalService) -> Iterator[ApiServer]:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "dags").mkdir()
    server = ApiServer(folder / "airflow", folder / "dags")
    lake = local_service.env["AIRFLOW_CONN_SNOWFLAKE_DEFAULT"]
    try:
        server.prepare()
        server.start({**local_service.env, "AIRFLOW_CONN_LAKE": lake})
        engine = create_engine(f"sqlite:///{server.home / 'airflow.db'}", connect_args={"timeout": 60})
        leave_a_past(AirflowTables(engine), local_service)
        engine.dispose()
        server.wait_until_healthy()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def browsed(server: ApiServer) -> Iterator[Pages]:
    with browser.opened(server) as pages:
        pages.sign_in(*server.login)
        yield pages


@pytest.fixture
def pages(browsed: Pages) -> Pages:
    browsed.leave_frame()
    return browsed


def leave_a_past(tables: AirflowTables, service: LocalService) -> None:
    """Leave what some days of loads leave, and pipes in every state."""
    make_table(service, "ORDERS")
    commit(service, "ORDERS", "orders_eu", ["f:1", "f:2"])
    rows = {"orders_eu": 0, "orders_us": 0}
    for run in range(40):
        names = {"run": f"scheduled__{run:02}", "minutes_ago": (40 - run) * 45}
        before, waits = {name: f"f:{count}" for name, count in rows.items()}, run % 6 != 5
        share = {"orders_eu": 4_000 + 900 * (run % 7), "orders_us": 2_500 + 400 * (run % 5)}
        rows = {name: rows[name] + share[name] for name in rows}
        after = {name: f"f:{count}" for name, count in rows.items()}
        common = {"latency_ms": 700 + 90 * (run % 9), "committed": waits}
        channels = {
            name: {"from": before[name], "to": after[name], "rows": share[name], **common} for name in rows
        }
        last = {"unloaded": UNLOADED} if run == 39 else {}
        tables.leave(**names, seconds=9, **streamed(channels, seconds=6 + run % 4, **last))
        if not waits:
            tables.leave(
                **{**names, "minutes_ago": names["minutes_ago"] - 20},
                task="wait_for_commit",
                operator="SnowpipeCommitSensor",
                channel_page=page_address("lake"),
                return_value=after,
            )
    clicks = {"clicks_0": {"to": "f:9", "rows": 9, "rejected": 2}, "clicks_1": {"to": "f:8", "rows": 8}}
    behind = {"sensors_0": {"to": "f:5000", "rows": 5000, "committed": False}}
    old = {"returns_0": {"to": "f:70", "rows": 70}}
    for dag, found, minutes in (("clicks", clicks, 10), ("sensors", behind, 25), ("returns", old, 37_440)):
        left = streamed(found, table=dag.upper())
        tables.leave(dag=dag, run="manual__1", minutes_ago=minutes, **left)
    outcome = {
        "path": "stream",
        "estimated": {"rows": 6_500, "bytes": 1.4e6, "seconds": 12.0, "credits": 0.02},
        "actual": {"rows": 6_510, "bytes": 1.38e6, "seconds": 9.4, "latency": 6.1, "credits": 0.019},
    }
    shape = {"bounded": True, "rows": 6_500, "bytes": 1.4e6, "freshness": 60, "partitions": 2}
    tables.leave(run="scheduled__39", task="route", plan={**PLAN.as_json(), "shape": shape}, outcome=outcome)


@pytest.fixture
def picture(pages: Pages, tmp_path: Path) -> Callable[..., None]:
    """Save what is shown, with Airflow's own page around it."""
    folder = Path(os.environ.get("SNOWPIPE_PICTURES", tmp_path))

    def save(name: str, height: int = 700) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        pages.leave_frame()
        pages.picture(folder / f"{name}.png", 1240, height)
        pages.enter_frame()
        assert (folder / f"{name}.png").stat().st_size < 150_000

    return save


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_every_page_in_airflows_themes(pages: Pages, picture: Callable[..., None], theme: str) -> None:
    pages.visit("")
    pages.run(f"localStorage.setItem('theme', '{theme}')")
    pages.visit("plugin/snowpipe")
    pages.enter_frame()
    states = {"ORDERS": "COMMITTED", "CLICKS": "REJECTED ROWS", "SENSORS": "BEHIND", "RETURNS": "COMMITTED"}
    for table, state in states.items():
        row = f"//tr[contains(., 'LOCAL.PUBLIC.{table}-STREAMING')]"
        assert pages.text_of(f"{row}//span[contains(@class, 'state')]") == state
    color = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    assert (sum(pages.run(f"return {color}")[:3]) < 200) == (theme == "dark")
    picture(f"overview-{theme}")
    hidden = "const one = document.querySelector('.wide'); return one.scrollWidth - one.clientWidth"
    assert pages.run(hidden) == 0
    pages.follow("Plans")
    pages.wait_until_shown("//article[contains(., 'rows are required within 60 s')]")
    picture(f"plans-{theme}")
    pages.leave_frame()
    pages.visit("plugin/snowpipe")
    pages.enter_frame()
    pages.follow("LOCAL.PUBLIC.ORDERS-STREAMING")
    pages.wait_until_shown(FOURTH_CHART)
    picture(f"pipe-{theme}", height=860)
    assert pages.text_of("(//section[@class='unloaded'])[1]//tbody//code") == UNLOADED["rows"][0]["text"]
    pages.follow("orders_eu")
    assert pages.text_of("//*[@id='committed']") == "f:2"
    pages.wait_until_shown(FOURTH_CHART)
    picture(f"channel-{theme}", height=860)
    assert pages.reported_errors() == []
    pages.follow("orders · load")
    pages.leave_frame()
    pages.wait_until_at("dags/orders/runs/")


def test_a_connection_made_with_the_form_hides_its_key_and_passes_its_test(
    pages: Pages, local_service: LocalService
) -> None:
    service = local_service
    service.sql("CREATE TABLE IF NOT EXISTS TESTED (N INTEGER)")
    pages.visit("connections")
    pages.press("Add Connection")
    pages.fill({"connection_id": "made_by_hand"})
    pages.choose("Snowpipe Streaming")
    pages.wait_until_shown(*(f"{DIALOG}[contains(., '{label}')]" for label in LABELS))
    host, port = service.url.rsplit(":", 1)
    pages.fill({"host": host, "port": port, "login": service.user, "schema": "PUBLIC"})
    pages.press("Extra Fields", DIALOG)
    pages.wait_until_shown(*(f"{DIALOG}[contains(., '{label}')]" for label in EXTRA_LABELS))
    assert pages.field("element_private_key_content").get_attribute("type") == "password"
    extra = {
        "account": service.account,
        "private_key_content": service.key_file.read_text(),
        "database": "LOCAL",
        "table": "TESTED",
        "ca_bundle": str(service.ca_file),
    }
    pages.fill({f"element_{field}": text for field, text in extra.items()})
    pages.press("Save", DIALOG)
    pages.wait_until_gone(DIALOG)

    pages.visit("connections")
    pages.press("Test Connection", "//tr[.//*[normalize-space()='made_by_hand']]")

    answer = pages.text_of(TOAST)
    assert "Credentials accepted" in answer
    assert "TESTED-STREAMING is there" in answer
