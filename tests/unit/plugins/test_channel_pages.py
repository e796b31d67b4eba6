"""The pages of channels: what they show, to whom, and what they report when something is wrong."""

import base64
import hashlib
import re
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore

import pytest

from tests.airflow_connections import PAT, statuses
from tests.local_connection import commit
from tests.scripted_service import Reply

RENDERING = "airflow_provider_snowpipe.plugins.rendering"
SCRIPTED = {"database": "DB", "schema": "S", "pipe": "T-STREAMING"}


@pytest.fixture
def get(client):
    """Ask for a page as an administrator: ``(kind, connection, **query) -> answer``."""
    asked = client().get
    return lambda kind, connection, **query: asked(f"/connections/{connection}/{kind}", params=query)


def cell(page, name):
    """The text of a cell of a channel's page."""
    found = re.search(rf'<td id="{name}"[^>]*>(.*?)</td>', page, re.DOTALL)
    assert found is not None, page
    return " ".join(re.sub(r"<[^>]*>", "", found[1]).split())


class TestTime:
    """A page has its own time, whatever a service or a server of tokens does: it takes a slot meanwhile."""

    @staticmethod
    def drip(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        with suppress(OSError):
            for _ in range(200):
                handler.wfile.write(b" ")
                threading.Event().wait(0.1)

    @pytest.fixture
    def in_time(self, get, service, set_connection, monkeypatch):
        """Ask for a page of a service that does not answer; its text."""
        monkeypatch.setattr(f"{RENDERING}.PAGE_SECONDS", 1.0)

        def page(kind, **extra):
            account = {"account": "a", "host": service.url, "ca_bundle": service.ca_bundle}
            conn_id = set_connection("slow", login="U", password=PAT, extra={**account, **extra})
            began = time.monotonic()
            answer = get(kind, conn_id, **SCRIPTED, **({"channel": "c"} if kind == "channel" else {}))
            assert (answer.status_code, time.monotonic() - began < 6) == (502, True)
            return answer.text

        return page

    @pytest.mark.parametrize("kind", ["channel", "channels"])
    def test_of_a_server_of_tokens_does_not_count(self, in_time, kind):
        deeds = {"do_POST": self.drip, "log_message": lambda *_: None}
        handler = type("Handler", (BaseHTTPRequestHandler,), deeds)
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            server.daemon_threads, server.block_on_close = True, False
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            endpoint = f"http://127.0.0.1:{server.server_address[1]}/token"
            oauth = {"authenticator": "oauth", "grant_type": "client_credentials"}
            text = in_time(kind, token_endpoint=endpoint, **oauth)
            server.shutdown()
        assert "no OAuth token" in text

    @pytest.mark.parametrize(
        ("part", "kind"), [("bulk-channel-status", "channel"), ("login-request", "channels")]
    )
    def test_of_a_service_does_not_count(self, in_time, service, part, kind):
        service.on(part, Reply(delay=20))
        in_time(kind, authenticator="programmatic_access_token")


class TestChannel:
    @pytest.fixture
    def shown(self, get, service, service_connection):
        """The page of a channel whose status the service reports."""

        def page(status, **query):
            service.on("bulk-channel-status", statuses(c=status))
            answer = get("channel", service_connection, **SCRIPTED, channel="c", **query)
            assert answer.status_code == 200
            return answer.text

        return page

    def test_shows_what_the_service_reports_of_it(self, shown):
        status = {
            "last_committed_offset_token": "a:7",
            "rows_inserted": 7,
            "rows_parsed": 9,
            "rows_error_count": 2,
            "last_error_message": "Numeric value 'x' is not recognized",
            "last_error_offset_upper_bound": "a:5",
            "created_on_ms": 1_769_817_600_000,
            "snowflake_avg_processing_latency_ms": 812,
        }
        expected = {
            "status": "REJECTED ROWS",
            "committed": "a:7",
            "rows_inserted": "7",
            "rows_parsed": "9",
            "rows_rejected": "2",
            "last_error": "Numeric value &#39;x&#39; is not recognized, at or before a:5",
            "latency": "812 ms",
            "created": "2026-01-31 00:00:00 UTC",
        }
        page = shown(status)
        assert {name: cell(page, name) for name in expected} == expected
        assert '<meta http-equiv="refresh" content="10">' in page

        page = shown(None)
        expected = {"committed": "NULL", "latency": "not known", "created": "not known"}
        assert {name: cell(page, name) for name in expected} == expected
        assert not re.search('id="(last_error|target)"', page)

        page = shown({"channel_status_code": "ERR_CHANNEL_HAS_INVALID_ROW_SEQUENCER"})
        assert cell(page, "status").startswith("ERR_CHANNEL_HAS_INVALID_ROW_SEQUENCER: its next writer opens")

    def test_compares_the_token_with_the_tasks_target(self, shown):
        target = {"target": "a:10", "offset_format": "file:line"}
        for committed, words in {"a:9": "not committed yet", "a:10": "committed"}.items():
            assert cell(shown(committed, **target), "target") == f"a:10 {words}"


class TestList:
    def test_has_some_channels_a_page(self, get, local_service, conn_id, table, monkeypatch):
        monkeypatch.setattr("airflow_provider_snowpipe.plugins.pages.CHANNELS_PER_PAGE", 5)
        with local_service.client(table) as client:
            for number in range(6):
                client.open_channel(f"in_{number}")
        commit(local_service, table, "other", ["a:3"])
        names = {"database": "LOCAL", "schema": "PUBLIC", "pipe": f"{table}-STREAMING"}

        first = get("channels", conn_id, **names, prefix="in_").text
        second = get("channels", conn_id, **names, prefix="in_", page=2).text

        assert "7 channels, page 1 of 2" in get("channels", conn_id, **names).text
        assert "6 channels, page 1 of 2" in first
        assert ("in_4" in first, "in_5" in first) == (True, False)
        assert second.count("channel?database=") == 1
        assert ('rel="prev"' in first, 'rel="next"' in second) == (False, False)
        assert "<code>a:3</code>" in get("channels", conn_id, **names, prefix="other").text
        assert "no such channel" in get("channels", conn_id, **names, prefix="<b>").text
        assert "There is no page 3 of 2" in get("channels", conn_id, **names, page=3).text

    def test_leads_to_each_channel_whatever_its_name(self, get, local_service, conn_id, table):
        name = 'a&b="<script>alert(1)</script>/#?'
        commit(local_service, table, name, ["a:1"])
        names = {"database": "LOCAL", "schema": "PUBLIC", "pipe": f"{table}-STREAMING"}

        page = get("channels", conn_id, **names).text
        (address,) = re.findall(r'<td><a href="([^"]*)">', page)
        query = dict(pair.split("=", 1) for pair in address.replace("&amp;", "&").split("?", 1)[1].split("&"))

        assert "<script>alert" not in page
        assert query["channel"] == "a%26b%3D%22%3Cscript%3Ealert%281%29%3C%2Fscript%3E%2F%23%3F"
        shown = get("channel", conn_id, **names, channel=name).text
        assert "<script>alert" not in shown
        assert "&lt;script&gt;" in shown
        assert cell(shown, "committed") == "a:1"


class TestWhoMaySee:
    def test_the_check_is_of_the_very_connection(self, get, service, service_connection, monkeypatch):
        asked = []
        from airflow.api_fastapi.app import create_auth_manager

        manager = create_auth_manager()
        monkeypatch.setattr(
            manager, "is_authorized_connection", lambda **given: bool(asked.append(given["details"].conn_id))
        )

        for written in (service_connection, "team%2Fa"):
            assert get("channel", written, **SCRIPTED, channel="c").status_code == 403

        assert asked == [service_connection, "team/a"]
        assert service.received == []

    def test_every_route_has_the_check(self, client):
        anonymous = client(None)
        paths = [route.path for route in anonymous.app.routes]
        assert len(paths) == 8
        for path in paths:
            assert anonymous.get(re.sub(r"{\w+(:path)?}", "c", path)).status_code == 403

    def test_a_page_runs_no_other_script_and_nobody_keeps_it(self, get, service, service_connection):
        service.on("bulk-channel-status", statuses(c="a:1"))
        answer = get("channel", service_connection, **SCRIPTED, channel="c")
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        (script,) = re.findall("<script>(.*?)</script>", answer.text, re.DOTALL)
        expected = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"; script-src 'sha256-{expected}';" in policy
        assert ("unsafe" in policy, answer.headers["Cache-Control"]) == (False, "no-store")
        assert not re.search("https?://", answer.text)


class TestTrouble:
    def test_a_connection_or_a_pipe_that_is_not_there(
        self, get, set_connection, local_service, conn_id, service, service_connection
    ):
        absent = {"database": "LOCAL", "schema": "PUBLIC", "pipe": "ABSENT-STREAMING"}
        web = set_connection("web", conn_type="http")
        service.on("bulk-channel-status", Reply(body='{"channel_statuses": {}}'))
        for kind, connection, names, status, words in [
            ("channel", service_connection, SCRIPTED, 404, "no such channel"),
            ("channel", "absent", SCRIPTED, 404, "isn&#39;t defined"),
            ("channel", web, SCRIPTED, 400, "use one of type"),
            ("channel", conn_id, absent, 404, "ABSENT"),
            ("channels", conn_id, {**absent, "database": "ABSENT"}, 502, "SHOW CHANNELS IN PIPE"),
        ]:
            answer = get(kind, connection, **names, channel="c")
            assert (answer.status_code, words in answer.text) == (status, True)

    def test_refused_credentials_are_not_shown(self, get, service, service_connection, caplog):
        service.on("token", Reply(status=401, body='{"message": "no"}'))
        answer = get("channel", service_connection, **SCRIPTED, channel="c")
        assert (answer.status_code, "AuthenticationError" in answer.text) == (502, True)
        assert PAT not in answer.text + caplog.text

    def test_a_format_that_an_address_names_is_not_imported(self, get, service, service_connection):
        target = {"target": "1", "offset_format": "antigravity.Offset"}
        answer = get("channel", service_connection, **SCRIPTED, channel="c", **target)
        assert answer.status_code == 400
        assert "must be one of" in answer.text
        assert "antigravity" not in sys.modules

    def test_more_requests_than_slots_may_come_again(self, get, service_connection, monkeypatch):
        slots = BoundedSemaphore(1)
        monkeypatch.setattr(f"{RENDERING}._slots", slots)
        with slots:
            answer = get("channel", service_connection, **SCRIPTED, channel="c")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert 'content="5"' in answer.text
        for _ in range(2):  # every request frees its slot
            assert get("channel", "absent", **SCRIPTED, channel="c").status_code == 404
