"""Every page of Snowpipe in Chromium, in Airflow's frame, with a past that nobody has to wait for.

The pictures of the docs are made here: ``SNOWPIPE_PICTURES=docs/pictures`` sets where they go.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import browser
import pytest
from browser import Pages
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
each_theme = pytest.mark.parametrize("name", ["light", "dark"])
HOSTILE = "\"'><script>document.title='taken'</script>{{7*7}}#?&"
VIEWER = "viewer"


class ApiServer(AirflowProcesses):
    """Airflow's API server alone, on which an administrator and a viewer may sign in."""

    components = ("metadatabase",)

    def _commands(self) -> dict[str, list[str]]:
        return {"api-server": super()._commands()["api-server"]}

    def _serves_tasks(self) -> bool:
        return True

    def _write_password(self) -> None:
        passwords = {"admin": secrets.token_urlsafe(12), VIEWER: secrets.token_urlsafe(12)}
        self._password_file.write_text(json.dumps(passwords))

    @property
    def viewer(self) -> tuple[str, str]:
        """User and password of somebody who may not read connections."""
        return VIEWER, json.loads(self._password_file.read_text())[VIEWER]


@dataclass(frozen=True)
class Shown:
    """What the tests read.

    :param server: the API server
    :param tables: its database
    :param service: what the connection ``lake`` reaches
    """

    server: ApiServer
    tables: AirflowTables
    service: LocalService


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "dags").mkdir()
    service = LocalService(folder / "service")
    server = ApiServer(folder / "airflow", folder / "dags")
    try:
        service.start()
        server.prepare()
        connection = json.loads(service.env["AIRFLOW_CONN_SNOWFLAKE_DEFAULT"])
        server.start(
            {
                **service.env,
                "AIRFLOW_CONN_LAKE": json.dumps(connection),
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"admin:admin,{VIEWER}:viewer",
            }
        )
        engine = create_engine(f"sqlite:///{server.home / 'airflow.db'}", connect_args={"timeout": 60})
        tables = AirflowTables(engine, first_run=1_000)
        leave_a_past(tables, service)
        server.wait_until_healthy()
        yield Shown(server, tables, service)
        engine.dispose()
    finally:
        server.stop()
        service.kill()


@pytest.fixture(scope="module")
def pages(shown: Shown) -> Iterator[Pages]:
    with browser.signed_in(shown.server) as pages:
        yield pages


@pytest.fixture(autouse=True)
def _at_the_top(pages: Pages) -> None:
    pages.leave_frame()


def leave_a_past(tables: AirflowTables, service: LocalService) -> None:
    """Leave what some days of loads leave, and pipes in every state."""
    make_table(service, "ORDERS")
    commit(service, "ORDERS", "orders_eu", ["f:1", "f:2"])
    rows = {"orders_eu": 0, "orders_us": 0}
    for run in range(40):
        share = {"orders_eu": 4_000 + 900 * (run % 7), "orders_us": 2_500 + 400 * (run % 5)}
        found = {name: f"f:{rows[name]}" for name in rows}
        rows = {name: rows[name] + share[name] for name in rows}
        channels = {
            name: {
                "from": found[name],
                "to": f"f:{rows[name]}",
                "rows": share[name],
                "latency_ms": 700 + 90 * (run % 9),
            }
            for name in rows
        }
        waits = run % 6 != 5
        left = streamed(
            {name: {**one, "committed": waits} for name, one in channels.items()}, seconds=6 + run % 4
        )
        tables.leave(run=f"scheduled__{run:02}", minutes_ago=(40 - run) * 45, seconds=9, **left)
        if not waits:
            seen = {name: f"f:{rows[name]}" for name in rows}
            tables.leave(
                run=f"scheduled__{run:02}",
                task="wait_for_commit",
                operator="SnowpipeCommitSensor",
                minutes_ago=(40 - run) * 45 - 20,
                channel_page=page_address("lake"),
                return_value=seen,
            )
    rejected = {
        "clicks_0": {"to": "f:900", "rows": 900, "rejected": 12},
        "clicks_1": {"to": "f:880", "rows": 880},
    }
    tables.leave(dag="clicks", run="manual__1", **streamed(rejected, table="CLICKS"))
    behind = {"sensors_0": {"to": "f:5000", "rows": 5000, "committed": False}}
    tables.leave(dag="sensors", run="manual__1", minutes_ago=25, **streamed(behind, table="SENSORS"))
    old = {"returns_0": {"to": "f:70", "rows": 70}}
    tables.leave(dag="returns", run="manual__1", minutes_ago=26 * 1440, **streamed(old, table="RETURNS"))
    outcome = {
        "path": "stream",
        "estimated": {"rows": 6_500, "bytes": 1.4e6, "seconds": 12.0, "credits": 0.02},
        "actual": {"rows": 6_510, "bytes": 1.38e6, "seconds": 9.4, "latency": 6.1, "credits": 0.019},
    }
    shape = {"bounded": True, "rows": 6_500, "bytes": 1.4e6, "freshness": 60, "partitions": 2}
    tables.leave(run="scheduled__39", task="route", plan={**PLAN.as_json(), "shape": shape}, outcome=outcome)


def of_pipe(table: str) -> str:
    return f"snowpipe/connections/lake/pipe?database=LOCAL&schema=PUBLIC&pipe={table}-STREAMING"


def state_of(pages: Pages, table: str) -> str:
    return pages.text_of(
        f"//tr[contains(., 'LOCAL.PUBLIC.{table}-STREAMING')]//span[contains(@class, 'state')]"
    )


def picture(pages: Pages, name: str, tmp_path: Path, width: int = 1240, height: int = 700) -> Path:
    folder = Path(os.environ.get("SNOWPIPE_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    pages.picture(folder / f"{name}.png", width, height)
    return folder / f"{name}.png"


@pytest.fixture
def theme(pages: Pages) -> Iterator[object]:
    """Choose Airflow's theme, as its own menu does."""

    def choose(name: str) -> None:
        pages.visit("")
        pages.run(f"localStorage.setItem('theme', '{name}')")

    yield choose
    choose("light")


@each_theme
def test_overview(pages: Pages, theme, tmp_path: Path, name: str) -> None:
    theme(name)
    pages.visit("plugin/snowpipe")
    pages.enter_frame()

    states = {table: state_of(pages, table) for table in ("ORDERS", "CLICKS", "SENSORS", "RETURNS")}
    assert states == {
        "ORDERS": "COMMITTED",
        "CLICKS": "REJECTED ROWS",
        "SENSORS": "BEHIND",
        "RETURNS": "COMMITTED",
    }
    red, green, blue = pages.run(
        "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    )[:3]
    assert (red + green + blue < 200) == (name == "dark")
    pages.leave_frame()
    assert picture(pages, f"overview-{name}", tmp_path).stat().st_size < 150_000
    pages.enter_frame()
    hidden = "const one = document.querySelector('.wide'); return one.scrollWidth - one.clientWidth"
    assert pages.run(hidden) == 0
    assert pages.reported_errors() == []


@each_theme
def test_pipe_and_channel(pages: Pages, theme, tmp_path: Path, name: str) -> None:
    theme(name)
    pages.visit("plugin/snowpipe")
    pages.enter_frame()
    pages.follow("LOCAL.PUBLIC.ORDERS-STREAMING")
    pages.wait_until_shown("(//*[local-name()='svg'][@role='img'])[4]")
    pages.leave_frame()
    assert picture(pages, f"pipe-{name}", tmp_path, height=860).stat().st_size < 150_000
    pages.enter_frame()
    pages.follow("orders_eu")
    assert pages.text_of("//*[@id='committed']") == "f:2"
    pages.wait_until_shown("(//*[local-name()='svg'][@role='img'])[4]")
    pages.leave_frame()
    assert picture(pages, f"channel-{name}", tmp_path, height=860).stat().st_size < 150_000
    assert pages.reported_errors() == []


def test_a_task_opens_in_airflows_own_window(pages: Pages) -> None:
    pages.visit("plugin/snowpipe")
    pages.enter_frame()
    pages.follow("clicks · load")
    pages.leave_frame()
    pages.wait_until_at("dags/clicks/runs/manual__1/tasks/load")


@each_theme
def test_plans(pages: Pages, theme, tmp_path: Path, name: str) -> None:
    theme(name)
    pages.visit("plugin/snowpipe")
    pages.enter_frame()
    pages.follow("Plans")
    pages.wait_until_shown("//article[contains(., 'rows are required within 60 s')]")
    pages.leave_frame()
    assert picture(pages, f"plans-{name}", tmp_path).stat().st_size < 150_000
    assert pages.reported_errors() == []


def test_2000_channels_are_paged_and_sorted_by_the_keyboard(pages: Pages, shown: Shown) -> None:
    many = {f"meter_{at:04}": {"to": f"f:{at}", "rows": at, "committed": at % 50 != 0} for at in range(2_000)}
    shown.tables.leave(dag="meters", run="manual__1", **streamed(many, table="METERS"))
    pages.visit(of_pipe("METERS"))
    pages.wait_until_shown("//*[@id='pages'][contains(., '2,000 channels, page 1 of 20')]")
    assert pages.text_of("//table[@id='channels']/tbody/tr[1]/td[1]") == "meter_1950"
    seconds = pages.run(
        "const one = performance.getEntriesByType('navigation')[0];"
        "return (one.responseEnd - one.requestStart) / 1000"
    )
    print(f"2,000 channels: {seconds:.2f} s")
    pages.press_key_on("//th/a[contains(., 'Rows')]")
    pages.wait_until_shown("//th[@aria-sort='descending'][contains(., 'Rows')]")
    assert pages.text_of("//table[@id='channels']/tbody/tr[1]/td[1]") == "meter_1999"
    pages.follow("after")
    pages.wait_until_shown("//*[@id='pages'][contains(., 'page 2 of 20')]")


def test_hostile_names_do_nothing(pages: Pages, shown: Shown) -> None:
    hostile = {HOSTILE: {"to": HOSTILE, "rows": 1}}
    left = streamed(hostile, connection="x", table=HOSTILE)
    shown.tables.leave(dag=HOSTILE, run=HOSTILE, task=HOSTILE, **left)
    pages.visit("snowpipe/overview")
    pages.wait_until_shown("//table[@id='pipes'][contains(., '{{7*7}}')]")
    assert pages.run("return document.title") == "Overview · Snowpipe"
    pages.press_key_on("//a[contains(., '{{7*7}}')]")
    pages.wait_until_shown("//h1[contains(., 'Pipe')]")
    assert pages.run("return document.title").endswith("· Snowpipe")
    assert pages.reported_errors() == []


def test_empty_and_error_states(pages: Pages) -> None:
    pages.visit(of_pipe("NEVER"))
    pages.wait_until_shown("//*[@id='empty']")
    pages.visit(of_pipe("NEVER").replace("lake/pipe", "absent/channels"))
    pages.wait_until_shown("//*[@id='problem'][contains(., 'absent')]")
    pages.visit("snowpipe/dags/orders/runs/none")
    pages.wait_until_shown("//*[@id='empty']")


def test_a_viewer_gets_the_reason(shown: Shown) -> None:
    with browser.opened(shown.server) as pages:
        pages.sign_in_as_viewer(*shown.server.viewer)
        pages.visit("snowpipe/overview")
        pages.wait_until_shown("//h1[contains(., 'may not see')]")
        pages.visit("snowpipe/dags/orders/runs/scheduled__01")
        pages.wait_until_shown("//*[@id='hidden']")
