"""The overview, the page of a pipe, the plans and the tabs: what they show, and to whom."""

import re

import pytest

from airflow_provider_snowpipe.plugins.snowpipe import SnowpipePlugin
from tests.airflow_tables import PLAN, page_address, streamed

PIPE = {"database": "LOCAL", "schema": "PUBLIC", "pipe": "ORDERS-STREAMING"}
OF_PIPE = "/connections/lake/pipe"
KINDS = ("pipe", "channels", "channel")
HOSTILE = "\"'><script>alert(1)</script>{{7*7}}/#?&"


@pytest.fixture
def get(client):
    """Ask for a page as an administrator."""
    asked = client().get
    return lambda path, **query: asked(path, params=query or None)


def cells(page, table):
    """The texts of a table's rows."""
    (found,) = re.findall(rf'<table id="{table}">.*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    rows = found.split("</tr>")[:-1]
    return [[text_of(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)] for row in rows]


def text_of(html):
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


class TestOverview:
    def test_has_every_pipe_the_worst_first(self, airflow_tables, get):
        for run, table, rows, more in (
            ("r1", "ORDERS", 3000, {}),
            ("r2", "BAD", 10, {"rejected": 2}),
            ("r3", "LATE", 10, {"committed": False}),
        ):
            channels = {"a": {"to": "f:3", "rows": rows, **more}}
            airflow_tables.leave(run=run, **streamed(channels, table=table))

        rows = cells(get("/overview").text, "pipes")

        assert [row[:4] for row in rows] == [
            ["LOCAL.PUBLIC.BAD-STREAMING lake", "REJECTED ROWS", "1", "10"],
            ["LOCAL.PUBLIC.LATE-STREAMING lake", "BEHIND", "1", "10"],
            ["LOCAL.PUBLIC.ORDERS-STREAMING lake", "COMMITTED", "1", "3,000"],
        ]
        assert rows[1][5:8] == ["10", "10 min", "0"]
        assert rows[2][4:] == ["1.5k", "0", "0 s", "0", "10 min ago", "orders · load"]

    def test_leads_to_the_pipe_and_to_the_task_whatever_their_names(self, airflow_tables, get):
        value = streamed({HOSTILE: {"to": HOSTILE, "rows": 1}}, connection=HOSTILE)
        airflow_tables.leave(dag=HOSTILE, run=HOSTILE, task=HOSTILE, **value)
        page = get("/overview").text
        assert "{{7*7}}" in page
        (to_pipe,) = re.findall(r'href="/snowpipe(/connections/[^"]*)"', page)
        shown = get(to_pipe.replace("&amp;", "&"))
        assert (shown.status_code, "<script>alert" in page + shown.text) == (200, False)
        assert cells(shown.text, "channels")[0][0].startswith("&#34;&#39;&gt;&lt;script")


def test_failed_sensor_shows_why_and_what_is_committed_and_rejected_once(airflow_tables, get):
    """A load did not wait, and two sensors after it failed on rejected rows."""
    sent = {"to": "f:199997", "rows": 199_997}
    airflow_tables.leave(run="r1", **streamed({"a": {**sent, "committed": False}}))
    seen = {"a": {"committed": "f:199997", "target": "f:199997", "rejected": 5, "latency_ms": 70}}
    failed = {"channel_page": page_address("lake"), "observed": {"reason": "rows_rejected", "channels": seen}}
    for task in ("wait", "wait_too"):
        airflow_tables.leave(run="r1", task=task, state="failed", minutes_ago=5, **failed)

    (row,) = cells(get("/overview").text, "pipes")
    page = get(OF_PIPE, **PIPE).text

    assert row[:4] == ["LOCAL.PUBLIC.ORDERS-STREAMING lake", "FAILED", "1", "199,997"]
    assert row[5:9] == ["0", "0 s", "5", "5 min ago"]
    (channel,) = cells(page, "channels")
    assert channel[:8] == ["a", "REJECTED ROWS", "f:199997", "f:199997", "0", "199,997", "5", "70 ms"]
    assert [row[2] for row in cells(page, "runs")[:2]] == ["failed rows_rejected"] * 2


def unloaded(page):
    found = re.findall(r'<section class="unloaded">(.*?)</section>', page, re.DOTALL)
    return [text_of(one.partition("<tbody>")[2].replace("</td>", " |")) for one in found]


def test_rows_that_did_not_load_are_shown_with_what_prints_them_and_run_no_script(airflow_tables, get):
    row = {"where": HOSTILE, "position": "f:7", "reason": HOSTILE, "text": HOSTILE * 90}
    left = {"path": f"/dead {HOSTILE}", "run": "app", "rows": [row, {"text": 5}, "no", *[row] * 99]}
    failed = {
        "a": {"to": "f:9", "rows": 9, "rejected": 1, "dead_lettered": 102, "last_error": "'x' is no number"}
    }
    airflow_tables.leave(run="r1", **streamed(failed, unloaded=left))
    airflow_tables.leave(
        run="r2", state="failed", channel_page=page_address("lake"), observed={"unloaded": left}
    )
    hidden = {"path": "kafka:t", "run": "app", "rows": [{**row, "text": None}]}
    airflow_tables.leave(run="r3", **streamed({"a": {"to": "f:9", "rows": 9}}, unloaded=hidden))

    page = get(OF_PIPE, **PIPE).text
    assert "<script>alert" not in page + get("/dags/orders/runs/r1").text
    by_run = {run: unloaded(get(f"/dags/orders/runs/{run}").text)[0] for run in ("r1", "r2", "r3")}
    assert len(unloaded(page)) == 3
    assert by_run["r1"].startswith("a | not known | &#39;x&#39; is no number | not shown |")
    assert "airflow snowpipe letters &#39;/dead" in by_run["r1"]
    assert (by_run["r2"].count("f:7"), len(page) < 200_000) == (19 - 1, True)
    assert ("not shown" in by_run["r3"], "letters" in by_run["r3"]) == (True, False)


def test_loads_by_copy_are_on_the_page_of_their_tables_pipe_and_on_the_overview(airflow_tables, get):
    entry = {"state": "loaded", "files": 2, "rows": 5, "rejected": 1, "query_id": HOSTILE, "error": None}
    entry["at"] = airflow_tables.now.isoformat()
    planned = {**entry, "state": "planned", "rows": 0, "rejected": 0, "at": None, "error": "no such stage"}
    row = {"where": "in/a.csv", "position": "2", "reason": "no number", "text": "three,y"}
    copies = {"entries": [entry, planned], "unloaded": {"path": "@S", "run": None, "rows": [row]}}
    page = {"channel_page": page_address("lake"), "copies": copies, "return_value": {"rows_loaded": 5}}
    airflow_tables.leave(state="failed", task="copy", **page)

    (line,) = cells(get("/overview").text, "pipes")
    assert line[1:4] == ["FAILED", "0", "5"]
    for shown in (get(OF_PIPE, **PIPE).text, get("/dags/orders/runs/r1").text):
        copies = cells(shown, "runs")[0][-1]
        assert copies.startswith("COPY planned · 2 files · 0 rows, 0 rejected · no such stage COPY loaded")
        assert "2 files · 5 rows, 1 rejected · 20" in copies
        assert "<script>alert" not in shown
        assert unloaded(shown) == ["in/a.csv | 2 | no number | three,y |"]


def audited(differences=(), connection="lake", pipe="ORDERS-STREAMING", **more):
    """What an audit leaves."""
    names = {"database": "LOCAL", "schema": "PUBLIC", "pipe": pipe}
    entry = {"connection": connection, "names": names, "channels": 3, "notes": [], "found": []}
    pipes = [{**entry, "differences": list(differences), **more}]
    return {"depth": "counts", "at": "2026-11-28T06:00:00+00:00", "pipes": pipes}


def audits(page):
    return [text_of(one) for one in re.findall(r'<section class="audit">(.*?)</section>', page, re.DOTALL)]


class TestAudit:
    """The last audit of a pipe is on its page, and on those of the task that made it."""

    def test_is_the_last_one_with_what_differs(self, airflow_tables, get):
        airflow_tables.leave(run="r1", minutes_ago=60, task="audit", audit=audited())
        texts = ["table ORDERS has 9 rows, 1 fewer <b>"]
        airflow_tables.leave(run="r2", task="audit", state="failed", audit=audited(texts))
        of_task = ("/dags/orders/tasks/audit", "/dags/orders/runs/r2/tasks/audit/-1")
        for page in (get(OF_PIPE, **PIPE), *map(get, of_task)):
            (shown,) = audits(page.text)
            assert "LOCAL.PUBLIC.ORDERS-STREAMING DIFFERS · depth counts · 3 channel" in shown
            assert "1 fewer &lt;b&gt;" in shown
        assert "AGREES" in audits(get("/dags/orders/runs/r1").text)[0]

    def test_is_found_behind_those_of_other_pipes_and_bounded(self, airflow_tables, get):
        many = audited(["x" * 1_000] * 1_000)
        airflow_tables.leave(run="r0", minutes_ago=60, task="audit", audit=many)
        for run in range(1, 25):
            airflow_tables.leave(run=f"r{run}", task="audit", audit=audited(pipe="OTHER-STREAMING"))
        page = get(OF_PIPE, **PIPE).text
        assert (len(audits(page)), "980 more" in page, len(page) < 50_000) == (1, True, True)

    def test_of_a_connection_that_may_not_be_read_is_not_shown(self, airflow_tables, get, monkeypatch):
        from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

        airflow_tables.leave(task="audit", audit=audited(connection="secret"))
        monkeypatch.setattr(
            SimpleAuthManager,
            "is_authorized_connection",
            lambda _, *, details=None, **__: getattr(details, "conn_id", None) != "secret",
        )
        page = get("/dags/orders/tasks/audit")
        assert (page.status_code, audits(page.text)) == (200, [])


class TestPipe:
    def test_shows_charts_channels_and_tasks(self, airflow_tables, get):
        airflow_tables.leave(run="r1", minutes_ago=60, **streamed({"a": {"to": "f:3", "rows": 3}}))
        second = {"a": {"from": "f:3", "to": "f:9", "rows": 6, "rejected": 1, "dead_lettered": 2}}
        backlog = {"files_behind": 2, "bytes_behind": 2048, "oldest_file_seconds": 60}
        airflow_tables.leave(run="r2", map_index=4, **streamed(second, source="/a b", backlog=backlog))

        page = get(OF_PIPE, **PIPE).text

        assert "2 files, 2,048 bytes, the oldest one written 60 s before" in text_of(page)
        assert "snowpipe files list &#39;/a b&#39; --conn-id lake --database LOCAL" in page

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

    def test_answers_whatever_an_address_asks_for(self, airflow_tables, get):
        for path, query in (("/overview", {}), (OF_PIPE, PIPE)):
            assert "No task" in get(path, **query).text
        airflow_tables.leave(**streamed({"a": {"to": "f:3", "rows": 3}}))
        for query, status in (
            ({"sort": "antigravity"}, 200),
            ({"page": 99}, 200),
            ({"page": 0}, 422),
            ({"database": ""}, 422),
        ):
            assert get(OF_PIPE, **{**PIPE, **query}).status_code == status

    def test_sorts_and_pages_channels_on_the_server(self, airflow_tables, get):
        for run in range(3):
            one = {"to": f"f:{run * 10 + 1}", "rejected": 5, "committed": False}
            channels = {f"c{at:04}": {**one, "rows": at} for at in range(220)}
            airflow_tables.leave(run=f"r{run}", minutes_ago=9 - run, **streamed(channels))
        page = get(OF_PIPE, **PIPE, sort="rows", descending="true", page=2)

        rows = cells(page.text, "channels")
        assert [row[0] for row in rows] == [f"c{at:04}" for at in range(119, 19, -1)]
        assert "220 channels, page 2 of 3" in page.text
        assert 'aria-sort="descending"' in page.text
        assert len(page.text) < 300_000
        by_name = get(OF_PIPE, **PIPE, sort="channel", descending="false", page=3).text
        assert cells(by_name, "channels")[-1][0] == "c0219"
        assert 'rel="next"' not in by_name


class TestPlans:
    def test_have_the_paths_side_by_side_and_the_outcome(self, airflow_tables, get):
        known = {"estimated": {"rows": 7, "seconds": 12}, "actual": {"rows": 8, "seconds": 9}}
        plan = {**PLAN.as_json(), "shape": {"bounded": True, "rows": 7}}
        airflow_tables.leave(plan=plan, outcome={"path": "stream", **known})

        page = text_of(get("/plans").text)

        for words in (
            "stream : rows are required within 60 s",
            "Shape: with an end · 7 rows",
            "stream (chosen) 0.02 7 s 12 s",
            "copy 0.3 60 s 90 s too slow",
            "Rows 7 8",
            "All rows after 12 s 9 s",
        ):
            assert words in page


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
    @pytest.mark.parametrize("role", [None, "viewer", "user"])
    def test_nobody_who_may_not_read_connections(self, client, role):
        client = client(role)
        of_connection = [f"/connections/lake/{kind}?database=D&schema=S&pipe=P&channel=c" for kind in KINDS]
        for path in ("/overview", "/plans", *of_connection):
            answer = client.get(path)
            assert (path, answer.status_code, answer.json()) == (path, 403, {"detail": "Forbidden"})
        shown = client.get("/overview", headers={"Accept": "text/html"})
        assert (shown.status_code, "You may not see this page" in shown.text) == (403, True)
        assert shown.headers["Content-Security-Policy"].startswith("default-src 'none'")

    def test_a_viewer_sees_no_tab_of_what_its_connection_hides(self, airflow_tables, client):
        airflow_tables.leave(**streamed({"a": {"to": "f:3", "rows": 3}}))
        page = client("viewer").get("/dags/orders/runs/r1").text
        assert "1 task of connections" in page
        assert "ORDERS" not in page

    def test_nothing_but_get(self, client):
        assert all(route.methods == {"GET"} for route in client().app.routes)
        assert client().post("/overview").status_code == 405


class TestNavigation:
    def test_addresses_have_the_path_of_the_server(self, airflow_tables, get, monkeypatch):
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://a.example/air")
        address = "/air" + page_address("lake")
        airflow_tables.leave(**{**streamed({"a": {"to": "f:3", "rows": 3}}), "channel_page": address})
        page = get("/overview").text
        assert SnowpipePlugin.external_views[0]["href"] == "/air/snowpipe/overview"
        assert 'href="/air/snowpipe/connections/lake/pipe?' in page
        assert 'href="/air/dags/orders/runs/r1/tasks/load"' in page
