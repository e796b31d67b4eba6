"""The overview, the page of a pipe, the plans and the tabs: what they show, and to whom."""

import re

import pytest

from tests.airflow_tables import PLAN, page_address, streamed
from tests.airflow_version import AIRFLOW

if AIRFLOW < (3, 1):
    pytest.skip("Airflow 2 has no such pages", allow_module_level=True)


from airflow_provider_snowpipe.plugins.snowpipe import SnowpipePlugin

PIPE = {"database": "LOCAL", "schema": "PUBLIC", "pipe": "ORDERS-STREAMING"}
OF_PIPE = "/connections/lake/pipe"
HOSTILE = "\"'><script>alert(1)</script>{{7*7}}/#?&"


@pytest.fixture(scope="module", autouse=True)
def served():
    """Import what the API server does, when the first test runs: every process collects this file."""
    global TestClient, pages

    from fastapi.testclient import TestClient

    from airflow_provider_snowpipe.plugins import pages


@pytest.fixture
def get(signed_in):
    """Ask for a page as an administrator."""
    signed_in("admin")
    client = TestClient(pages.app, raise_server_exceptions=False)
    return lambda path, **query: client.get(path, params=query or None)


def cells(page, table):
    """The texts of a table's rows."""
    (found,) = re.findall(rf'<table id="{table}">.*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    rows = found.split("</tr>")[:-1]
    return [[text_of(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)] for row in rows]


def text_of(html):
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


class TestOverview:
    def test_has_every_pipe_the_worst_first(self, airflow_tables, get):
        airflow_tables.leave(run="r1", **streamed({"a": {"to": "f:3", "rows": 3000}}))
        bad = {"a": {"to": "f:3", "rows": 10, "rejected": 2}}
        airflow_tables.leave(run="r2", **streamed(bad, table="BAD"))
        late = {"a": {"to": "f:3", "rows": 10, "committed": False}}
        airflow_tables.leave(run="r3", **streamed(late, table="LATE"))

        rows = cells(get("/overview").text, "pipes")

        assert [row[:4] for row in rows] == [
            ["LOCAL.PUBLIC.BAD-STREAMING lake", "REJECTED ROWS", "1", "10"],
            ["LOCAL.PUBLIC.LATE-STREAMING lake", "BEHIND", "1", "10"],
            ["LOCAL.PUBLIC.ORDERS-STREAMING lake", "COMMITTED", "1", "3,000"],
        ]
        assert rows[1][5:8] == ["10", "10 min", "0"]
        assert rows[2][4:8] == ["1.5k", "0", "0 s", "0"]
        assert rows[2][8:] == ["10 min ago", "orders · load"]

    def test_reports_it_when_there_is_nothing(self, get):
        page = get("/overview")

        assert page.status_code == 200
        assert "No task that you may see" in page.text

    def test_leads_to_the_pipe_and_to_the_task_whatever_their_names(self, airflow_tables, get):
        airflow_tables.leave(
            dag=HOSTILE,
            run=HOSTILE,
            task=HOSTILE,
            **streamed({HOSTILE: {"to": HOSTILE, "rows": 1}}, connection=HOSTILE),
        )

        page = get("/overview").text

        assert "<script>alert" not in page
        assert "{{7*7}}" in page
        (to_pipe,) = re.findall(r'href="/snowpipe(/connections/[^"]*)"', page)
        shown = get(to_pipe.replace("&amp;", "&"))
        assert shown.status_code == 200
        assert "<script>alert" not in shown.text
        assert cells(shown.text, "channels")[0][0].startswith("&#34;&#39;&gt;&lt;script")


class TestFailedSensor:
    """A load that did not wait, and the sensor after it that failed on rejected rows."""

    @pytest.fixture
    def observed(self, airflow_tables):
        sent = {"a": {"to": "f:199997", "rows": 199_997, "committed": False}}
        airflow_tables.leave(run="r1", **streamed(sent))
        seen = {"a": {"committed": "f:199997", "target": "f:199997", "rejected": 5, "latency_ms": 70}}
        for task in ("wait", "wait_too"):
            airflow_tables.leave(
                run="r1", task=task, state="failed", minutes_ago=5, channel_page=page_address("lake"),
                observed={"reason": "rows_rejected", "channels": seen},
            )  # fmt: skip

    def test_shows_what_is_committed_and_rejected_once(self, observed, get):
        (row,) = cells(get("/overview").text, "pipes")

        assert row[:4] == ["LOCAL.PUBLIC.ORDERS-STREAMING lake", "FAILED", "1", "199,997"]
        assert row[5:9] == ["0", "0 s", "5", "5 min ago"]

    def test_shows_why(self, observed, get):
        page = get(OF_PIPE, **PIPE).text

        (channel,) = cells(page, "channels")
        assert channel[:8] == ["a", "REJECTED ROWS", "f:199997", "f:199997", "0", "199,997", "5", "70 ms"]
        assert [row[2] for row in cells(page, "runs")[:2]] == ["failed rows_rejected"] * 2

    def test_counts_nothing_that_its_load_has_counted(self, airflow_tables, get):
        airflow_tables.leave(run="r1", **streamed({"a": {"to": "f:9", "rows": 9, "rejected": 5}}))
        seen = {"a": {"committed": "f:9", "target": "f:9", "rejected": 5}}
        airflow_tables.leave(
            run="r1", task="wait", state="failed", minutes_ago=5, channel_page=page_address("lake"),
            observed={"reason": "rows_rejected", "channels": seen},
        )  # fmt: skip

        assert cells(get("/overview").text, "pipes")[0][7] == "5"


def audited(differences=(), connection="lake", pipe="ORDERS-STREAMING", **more):
    """What an audit leaves."""
    entry = {
        "connection": connection,
        "names": {"database": "LOCAL", "schema": "PUBLIC", "pipe": pipe},
        "channels": 3,
        "differences": list(differences),
        "notes": [],
        "found": [],
    }
    return {"depth": "counts", "at": "2026-11-28T06:00:00+00:00", "pipes": [{**entry, **more}]}


def audits(page):
    return [text_of(one) for one in re.findall(r'<section class="audit">(.*?)</section>', page, re.DOTALL)]


class TestAudit:
    """The last audit of a pipe is on its page, and on those of the task that made it."""

    def test_is_the_last_one_with_what_differs(self, airflow_tables, get):
        airflow_tables.leave(run="r1", minutes_ago=60, task="audit", audit=audited())
        texts = ["table ORDERS has 9 rows, 1 fewer <b>"]
        airflow_tables.leave(run="r2", task="audit", state="failed", audit=audited(texts))

        pages = [get(OF_PIPE, **PIPE).text, get("/dags/orders/tasks/audit").text]
        pages.append(get("/dags/orders/runs/r2/tasks/audit/-1").text)
        earlier = get("/dags/orders/runs/r1").text

        for page in pages:
            (shown,) = audits(page)
            assert shown.startswith(
                "Last audit of LOCAL.PUBLIC.ORDERS-STREAMING DIFFERS · depth counts · 3 channel"
            )
            assert "1 fewer &lt;b&gt;" in shown
        (shown,) = audits(earlier)
        assert "AGREES" in shown

    def test_is_found_behind_those_of_other_pipes(self, airflow_tables, get):
        airflow_tables.leave(run="r0", minutes_ago=60, task="audit", audit=audited())
        for run in range(1, 25):
            airflow_tables.leave(run=f"r{run}", task="audit", audit=audited(pipe="OTHER-STREAMING"))

        assert len(audits(get(OF_PIPE, **PIPE).text)) == 1

    def test_is_bounded(self, airflow_tables, get):
        airflow_tables.leave(task="audit", audit=audited(["x" * 1_000] * 1_000))

        page = get(OF_PIPE, **PIPE).text

        assert len(page) < 50_000
        assert "980 more" in page

    @pytest.mark.parametrize(
        "strange",
        [
            {"pipes": 5},
            {"pipes": [None, [], {"names": []}, {"names": {"database": {}}}]},
            audited(connection=[]),
            audited(connection=""),
            audited(pipe=""),
            audited(channels=1e300, differences={"a": 1}, notes="x"),
            {**audited(), "at": "0001-01-01T00:00:00+14:00"},
            {**audited(), "at": 5, "depth": ["x"]},
            {"pipes": [audited()["pipes"][0]] * 50_000, "depth": "x"},
        ],
    )
    def test_of_another_form_spoils_nothing(self, airflow_tables, get, strange):
        airflow_tables.leave(run="r1", minutes_ago=60, task="audit", audit=audited())
        airflow_tables.leave(run="r2", task="audit", audit=strange)

        answers = [get(OF_PIPE, **PIPE), get("/dags/orders/runs/r2"), get("/dags/orders/tasks/audit")]

        assert [answer.status_code for answer in answers] == [200] * 3
        assert audits(answers[0].text)

    def test_of_a_connection_that_may_not_be_read_is_not_shown(self, airflow_tables, get, monkeypatch):
        from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

        airflow_tables.leave(task="audit", audit=audited(connection="secret"))
        may = SimpleAuthManager.is_authorized_connection
        monkeypatch.setattr(
            SimpleAuthManager,
            "is_authorized_connection",
            lambda self, *, details=None, **more: (
                getattr(details, "conn_id", None) != "secret" and may(self, details=details, **more)
            ),
        )

        page = get("/dags/orders/tasks/audit")

        assert (page.status_code, audits(page.text)) == (200, [])


class TestPipe:
    def test_shows_charts_channels_and_tasks(self, airflow_tables, get):
        airflow_tables.leave(run="r1", minutes_ago=60, **streamed({"a": {"to": "f:3", "rows": 3}}))
        second = {"a": {"from": "f:3", "to": "f:9", "rows": 6, "rejected": 1, "dead_lettered": 2}}
        airflow_tables.leave(run="r2", map_index=4, **streamed(second))

        page = get(OF_PIPE, **PIPE).text

        assert page.count('<svg viewBox="0 0 720 240" role="img"') == 4
        assert page.count("<title ") == page.count("<desc ") == 4
        assert [row[:8] for row in cells(page, "channels")] == [
            ["a", "REJECTED ROWS", "f:9", "f:9", "0", "9", "1", "40 ms"]
        ]
        assert [[row[0], *row[4:9]] for row in cells(page, "runs")] == [
            ["orders · load [4]", "6", "3", "1", "2", "40 ms"],
            ["orders · load", "3", "1.5", "0", "0", "40 ms"],
        ]
        assert '/dags/orders/runs/r2/tasks/load/mapped/4"' in page
        assert 'href="/snowpipe/connections/lake/channels?database=LOCAL' in page

    def test_shows_the_files_that_waited_for_the_last_load_of_each_task(self, airflow_tables, get):
        for minutes, files in ((60, 9), (5, 1_234)):
            left = {"files_behind": files, "bytes_behind": 70, "oldest_file_seconds": 5}
            value = streamed({"a": {"to": "f:3", "rows": 3}}, backlog=left)
            airflow_tables.leave(run=f"r{minutes}", minutes_ago=minutes, **value)
        assert "began: 1,234 files, 70 bytes, the oldest one written 5 s before" in " ".join(
            get(OF_PIPE, **PIPE).text.split()
        )

    def test_reports_it_when_there_is_nothing(self, get):
        assert "No task that you may see" in get(OF_PIPE, **PIPE).text

    def test_sorts_and_pages_2000_channels_on_the_server(self, airflow_tables, get):
        for run in range(3):
            channels = {
                f"c{at:04}": {
                    "to": f"f:{run * 10 + 1}",
                    "rows": at,
                    "rejected": at % 7,
                    "committed": at % 2 == 0,
                }
                for at in range(2000)
            }
            airflow_tables.leave(run=f"r{run}", minutes_ago=9 - run, **streamed(channels))
        get("/overview")

        page = get(OF_PIPE, **PIPE, sort="rows", descending="true", page=2)

        rows = cells(page.text, "channels")
        assert [row[0] for row in rows] == [f"c{at:04}" for at in range(1899, 1799, -1)]
        assert "2,000 channels, page 2 of 20" in page.text
        assert 'aria-sort="descending"' in page.text
        assert len(page.text) < 300_000
        by_name = get(OF_PIPE, **PIPE, sort="channel", descending="false", page=20).text
        assert cells(by_name, "channels")[-1][0] == "c1999"
        assert 'rel="next"' not in by_name

    def test_a_column_or_a_page_that_is_not_there(self, airflow_tables, get):
        airflow_tables.leave(**streamed({"a": {"to": "f:3", "rows": 3}}))

        for query in ({"sort": "antigravity"}, {"page": 99}):
            assert get(OF_PIPE, **PIPE, **query).status_code == 200

    def test_an_address_that_is_none(self, get):
        for query in ({"page": 0}, {"page": "x"}, {"database": ""}):
            assert get(OF_PIPE, **{**PIPE, **query}).status_code == 422


class TestPlans:
    def test_have_the_paths_side_by_side_and_the_outcome(self, airflow_tables, get):
        outcome = {
            "path": "stream",
            "estimated": {"rows": 7, "seconds": 12},
            "actual": {"rows": 8, "seconds": 9},
        }
        plan = {**PLAN.as_json(), "shape": {"bounded": True, "rows": 7}}
        airflow_tables.leave(plan=plan, outcome=outcome)

        page = text_of(get("/plans").text)

        assert "stream : rows are required within 60 s" in page
        assert "Shape: with an end · 7 rows" in page
        assert "stream (chosen) 0.02 7 s 12 s" in page
        assert "copy 0.3 60 s 90 s too slow" in page
        assert "Rows 7 8" in page
        assert "All rows after 12 s 9 s" in page

    def test_report_it_when_there_is_none(self, get):
        assert "was routed" in get("/plans").text
        assert "There is no page 2" in get("/plans", page=2).text

    def test_ten_a_page(self, airflow_tables, get):
        for run in range(12):
            airflow_tables.leave(run=f"r{run}", minutes_ago=run, plan=PLAN.as_json())

        first, second = get("/plans").text, get("/plans", page=2).text

        assert (first.count("<article"), second.count("<article")) == (10, 2)
        assert 'href="/snowpipe/plans?page=2" rel="next"' in first
        assert 'rel="next"' not in second


class TestTabs:
    def test_have_what_the_run_the_task_and_the_instance_did(self, airflow_tables, get):
        airflow_tables.leave(run="r1", **streamed({"a": {"to": "f:3", "rows": 3}}), plan=PLAN.as_json())
        airflow_tables.leave(run="r1", task="two", **streamed({"b": {"to": "f:4", "rows": 4}}))
        airflow_tables.leave(run="r2", map_index=1, **streamed({"a": {"to": "f:5", "rows": 5}}))

        def rows(path):
            return [row[4] for row in cells(get(f"/dags/orders/{path}").text, "runs")]

        assert sorted(rows("runs/r1")) == ["3", "4"]
        assert sorted(rows("tasks/load")) == ["3", "5"]
        assert rows("runs/r1/tasks/two/{MAP_INDEX}") == ["4"]
        assert rows("runs/r2/tasks/load/1") == ["5"]
        assert "<article" in get("/dags/orders/runs/r1").text
        assert "<article" not in get("/dags/orders/runs/r2").text
        assert "Nothing of Snowpipe" in get("/dags/orders/runs/r3").text


class TestWhoMaySee:
    def test_nobody_who_may_not_read_connections(self, signed_in):
        for role in (None, "viewer", "user"):
            signed_in(role)
            for path in ("/overview", "/plans", f"{OF_PIPE}?database=D&schema=S&pipe=P"):
                answer = TestClient(pages.app).get(path)
                assert (role, path, answer.status_code) == (role, path, 403)
                assert answer.json() == {"detail": "Forbidden"}

    def test_a_browser_gets_the_reason(self, signed_in):
        signed_in("viewer")

        answer = TestClient(pages.app).get("/overview", headers={"Accept": "text/html"})

        assert answer.status_code == 403
        assert "You may not see this page" in answer.text
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")

    def test_a_viewer_sees_the_tab_of_a_dag_without_what_its_connection_hides(
        self, airflow_tables, signed_in
    ):
        airflow_tables.leave(**streamed({"a": {"to": "f:3", "rows": 3}}))
        signed_in("viewer")

        page = TestClient(pages.app).get("/dags/orders/runs/r1").text

        assert "1 task of connections that you may not read" in page
        assert "ORDERS" not in page

    def test_nothing_but_get(self, get):
        client = TestClient(pages.app)
        for route in pages.app.routes:
            assert route.methods == {"GET"}
        assert client.post("/overview").status_code == 405


class TestNavigation:
    def test_leads_to_pages_that_are_there(self, airflow_tables, get):
        airflow_tables.leave(**streamed({"a": {"to": "f:3", "rows": 3}}))
        views = {one["destination"]: one["href"] for one in SnowpipePlugin.external_views}

        assert set(views) == {"nav", "task", "dag_run", "task_instance"}
        for href in views.values():
            path = href.removeprefix("/snowpipe")
            for name, value in {"DAG_ID": "orders", "RUN_ID": "r1", "TASK_ID": "load"}.items():
                path = path.replace(f"{{{name}}}", value)
            answer = get(path)
            assert answer.status_code == 200
            assert "ORDERS-STREAMING" in answer.text

    def test_routes_are_distinguished(self):
        routes = [one["url_route"] for one in SnowpipePlugin.external_views]

        assert len(set(routes)) == len(routes)

    def test_addresses_have_the_path_of_the_server(self, airflow_tables, get, monkeypatch):
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://a.example/air")
        address = "/air" + page_address("lake")
        airflow_tables.leave(**{**streamed({"a": {"to": "f:3", "rows": 3}}), "channel_page": address})

        page = get("/overview").text

        assert SnowpipePlugin.external_views[0]["href"] == "/air/snowpipe/overview"
        assert 'href="/air/snowpipe/connections/lake/pipe?' in page
        assert 'href="/air/dags/orders/runs/r1/tasks/load"' in page
