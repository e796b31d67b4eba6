"""The pages of channels: what they show, to whom, and what they report when something is wrong."""

import base64
import hashlib
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore
from typing import Any

import pytest

from tests.airflow_connections import PAT, statuses
from tests.airflow_version import AIRFLOW
from tests.local_connection import commit
from tests.scripted_service import Reply

if AIRFLOW < (3, 1):
    pytest.skip("Airflow 2 has another web server, which has no such pages", allow_module_level=True)


Get = Callable[..., Any]
SCRIPTED = {"database": "DB", "schema": "S", "pipe": "T-STREAMING"}


@pytest.fixture(scope="module", autouse=True)
def served():
    """Import what the API server does, when the first test runs: every process collects this file."""
    global TestClient, create_auth_manager, pages, rendering

    from airflow.api_fastapi.app import create_auth_manager
    from fastapi.testclient import TestClient

    from airflow_provider_snowpipe.plugins import pages, rendering


@pytest.fixture
def anonymous(signed_in):
    return TestClient(pages.app)


@pytest.fixture
def get(signed_in):
    """Ask for a page as an administrator: ``(kind, connection, **query) -> answer``."""
    signed_in("admin")
    client = TestClient(pages.app, raise_server_exceptions=False)

    def ask(kind, connection, **query):
        return client.get(f"/connections/{connection}/{kind}", params=query)

    return ask


def cell(page, name):
    """The text of a cell of a channel's page."""
    found = re.search(rf'<td id="{name}"[^>]*>(.*?)</td>', page, re.DOTALL)
    assert found is not None, page
    return " ".join(re.sub(r"<[^>]*>", "", found[1]).split())


class TestTime:
    """A page has its own time, whatever a service or a server of tokens does: it takes a slot meanwhile."""

    @pytest.fixture
    def tokens(self):
        """A server of tokens that does what a test appends."""
        deeds = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                deeds[0](self)

            def log_message(self, *_):
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            server.block_on_close = False
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            yield deeds, f"http://127.0.0.1:{server.server_address[1]}/token"
            server.shutdown()

    @staticmethod
    def hang(handler):
        threading.Event().wait(20)

    @staticmethod
    def drip(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        with suppress(OSError):
            for _ in range(200):
                handler.wfile.write(b" ")
                threading.Event().wait(0.1)

    @staticmethod
    def overloaded(handler):
        handler.send_response(503)
        handler.send_header("Retry-After", "60")
        handler.end_headers()

    @pytest.mark.parametrize("kind", ["channel", "channels"])
    @pytest.mark.parametrize("deed", [hang, drip, overloaded], ids=["hangs", "drips", "is overloaded"])
    def test_of_a_server_of_tokens_does_not_count(
        self, get, service, set_connection, tokens, monkeypatch, kind, deed
    ):
        deeds, endpoint = tokens
        deeds.append(deed)
        monkeypatch.setattr(rendering, "PAGE_SECONDS", 1.0)
        extra = {
            "account": "a",
            "host": service.url,
            "ca_bundle": service.ca_bundle,
            "authenticator": "oauth",
        }
        extra |= {"grant_type": "client_credentials", "token_endpoint": endpoint}
        conn_id = set_connection("slow", login="id", password="secret", extra=extra)
        began = time.monotonic()

        answer = get(kind, conn_id, **SCRIPTED, **({"channel": "c"} if kind == "channel" else {}))

        assert (answer.status_code, time.monotonic() - began < 6) == (502, True)
        assert "no OAuth token" in answer.text

    @pytest.mark.parametrize("part", ["hostname", "token", "bulk-channel-status", "login-request"])
    def test_of_a_service_does_not_count(self, get, service, set_connection, monkeypatch, part):
        monkeypatch.setattr(rendering, "PAGE_SECONDS", 1.0)
        service.on(part, Reply(delay=20))
        extra = {"account": "a", "host": service.url, "ca_bundle": service.ca_bundle}
        extra["authenticator"] = "programmatic_access_token"
        conn_id = set_connection("slow", login="U", password=PAT, extra=extra)
        kind = "channels" if part == "login-request" else "channel"
        began = time.monotonic()

        answer = get(kind, conn_id, **SCRIPTED, channel="c")

        assert (answer.status_code, time.monotonic() - began < 6) == (502, True)


class TestChannel:
    def test_shows_what_the_service_reports_of_it(self, get, service, service_connection):
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
        service.on("bulk-channel-status", statuses(c=status))

        answer = get("channel", service_connection, **SCRIPTED, channel="c")

        assert answer.status_code == 200
        seen = {
            name: cell(answer.text, name)
            for name in (
                "status", "committed", "rows_inserted", "rows_parsed", "rows_rejected", "last_error",
                "latency", "created",
            )
        }  # fmt: skip
        assert seen == {
            "status": "REJECTED ROWS",
            "committed": "a:7",
            "rows_inserted": "7",
            "rows_parsed": "9",
            "rows_rejected": "2",
            "last_error": "Numeric value &#39;x&#39; is not recognized, at or before a:5",
            "latency": "812 ms",
            "created": "2026-01-31 00:00:00 UTC",
        }
        assert '<meta http-equiv="refresh" content="10">' in answer.text

    def test_shows_null_and_not_known_rather_than_nothing(self, get, service, service_connection):
        service.on("bulk-channel-status", statuses(c=None))

        page = get("channel", service_connection, **SCRIPTED, channel="c").text

        assert [cell(page, name) for name in ("committed", "latency", "created")] == [
            "NULL",
            "not known",
            "not known",
        ]
        assert 'id="last_error"' not in page
        assert 'id="target"' not in page

    def test_compares_the_token_with_the_tasks_target(self, get, service, service_connection):
        target = {"target": "a:10", "offset_format": "file:line"}
        for committed, words in {
            "a:9": "not committed yet",
            "a:10": "committed",
            None: "not committed yet",
        }.items():
            service.on("bulk-channel-status", statuses(c=committed))
            page = get("channel", service_connection, **SCRIPTED, channel="c", **target).text
            assert cell(page, "target") == f"a:10 {words}"

    def test_a_broken_session_is_named_with_what_follows(self, get, service, service_connection):
        broken = {"channel_status_code": "ERR_CHANNEL_HAS_INVALID_ROW_SEQUENCER"}
        service.on("bulk-channel-status", statuses(c=broken))

        page = get("channel", service_connection, **SCRIPTED, channel="c").text

        assert cell(page, "status").startswith("ERR_CHANNEL_HAS_INVALID_ROW_SEQUENCER: its next writer opens")

    def test_one_that_is_not_there_is_not_found(self, get, service, service_connection):
        service.on("bulk-channel-status", Reply(body='{"channel_statuses": {}}'))

        answer = get("channel", service_connection, **SCRIPTED, channel="c")

        assert answer.status_code == 404
        assert "no such channel" in answer.text


class TestList:
    def test_has_a_hundred_channels_a_page(self, get, local_service, conn_id, table):
        with local_service.client(table) as client:
            for number in range(101):
                client.open_channel(f"in_{number:03}")
        commit(local_service, table, "other", ["a:3"])
        names = {"database": "LOCAL", "schema": "PUBLIC", "pipe": f"{table}-STREAMING"}

        whole = get("channels", conn_id, **names).text
        first = get("channels", conn_id, **names, prefix="in_").text
        second = get("channels", conn_id, **names, prefix="in_", page=2).text

        assert "102 channels, page 1 of 2" in whole
        assert "101 channels, page 1 of 2" in first
        assert 'rel="prev"' not in first
        assert "in_099" in first
        assert "in_100" not in first
        assert second.count("channel?database=") == 1
        assert 'rel="next"' not in second
        assert "<code>a:3</code>" in get("channels", conn_id, **names, prefix="other").text

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

    def test_reports_it_when_there_is_none(self, get, local_service, conn_id, table):
        names = {"database": "LOCAL", "schema": "PUBLIC", "pipe": f"{table}-STREAMING"}
        commit(local_service, table, "c", ["a:1"])

        assert "no such channel" in get("channels", conn_id, **names, prefix="<b>").text
        assert "There is no page 2 of 1" in get("channels", conn_id, **names, page=2).text


class TestWhoMaySee:
    def test_nobody_who_may_not_read_connections(self, signed_in, service, service_connection):
        for role in (None, "viewer", "user"):
            signed_in(role)
            for kind in ("channel", "channels"):
                address = f"/connections/{service_connection}/{kind}"
                answer = TestClient(pages.app).get(address, params={**SCRIPTED, "channel": "c"})
                assert (role, kind, answer.status_code) == (role, kind, 403)
        assert service.received == []

    def test_the_check_is_of_the_very_connection(self, get, service, service_connection, monkeypatch):
        asked = []
        manager = create_auth_manager()
        monkeypatch.setattr(
            manager, "is_authorized_connection", lambda **given: bool(asked.append(given["details"].conn_id))
        )

        for written in (service_connection, "team%2Fa"):
            assert get("channel", written, **SCRIPTED, channel="c").status_code == 403

        assert asked == [service_connection, "team/a"]

    def test_every_route_has_the_check(self, anonymous):
        paths = [route.path for route in pages.app.routes]

        assert len(paths) == 8
        for path in paths:
            assert anonymous.get(re.sub(r"{\w+(:path)?}", "c", path)).status_code == 401

    def test_a_page_runs_no_other_script_and_nobody_keeps_it(self, get, service, service_connection):
        service.on("bulk-channel-status", statuses(c="a:1"))

        answer = get("channel", service_connection, **SCRIPTED, channel="c")

        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        (script,) = re.findall("<script>(.*?)</script>", answer.text, re.DOTALL)
        expected = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"; script-src 'sha256-{expected}';" in policy
        assert "unsafe" not in policy
        assert answer.headers["Cache-Control"] == "no-store"
        assert "http://" not in answer.text
        assert "https://" not in answer.text


class TestTrouble:
    def test_a_connection_or_a_pipe_that_is_not_there(self, get, set_connection, local_service, conn_id):
        absent = {"database": "LOCAL", "schema": "PUBLIC", "pipe": "ABSENT-STREAMING"}
        web = set_connection("web", conn_type="http")
        for kind, connection, names, status, words in [
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

        assert answer.status_code == 502
        assert "AuthenticationError" in answer.text
        assert PAT not in answer.text + caplog.text

    def test_a_format_that_an_address_names_is_not_imported(self, get, service, service_connection):
        target = {"target": "1", "offset_format": "antigravity.Offset"}

        answer = get("channel", service_connection, **SCRIPTED, channel="c", **target)

        assert answer.status_code == 400
        assert "must be one of" in answer.text
        assert "antigravity" not in sys.modules

    def test_more_requests_than_slots_are_refused_and_may_come_again(
        self, get, service_connection, monkeypatch
    ):
        taken = BoundedSemaphore(1)
        taken.acquire()
        monkeypatch.setattr(rendering, "_slots", taken)

        answer = get("channel", service_connection, **SCRIPTED, channel="c")

        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert 'content="5"' in answer.text
        taken.release()
        for _ in range(2):  # every request frees its slot
            assert get("channel", "absent", **SCRIPTED, channel="c").status_code == 404

    def test_an_address_that_lacks_a_name(self, get, service_connection):
        for missing in ("database", "schema", "pipe", "channel"):
            query = {**SCRIPTED, "channel": "c", missing: ""}
            assert get("channel", service_connection, **query).status_code == 422
