"""The connection form, its Test button, a trigger form and the pages of channels, used in a real browser."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import browser
import pytest
import requests
from browser import DIALOG, Pages
from conftest import Stack
from flights_run import RUN_SECONDS
from mapped_run import mapped_run

from tests.checkpoints import shown

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing())),
]
TOAST = "//*[@data-scope='toast' and @data-part='root']"


@pytest.fixture(scope="module")
def pages(stack: Stack) -> Iterator[Pages]:
    stack.service.sql("CREATE TABLE IF NOT EXISTS TESTED (N INTEGER)")
    with browser.signed_in(stack.airflow) as pages:
        yield pages


@pytest.fixture
def connection_id() -> str:
    return f"made_by_hand_{uuid.uuid4().hex[:8]}"


def add_connection(pages: Pages, stack: Stack, name: str, table: str) -> None:
    service = stack.service
    pages.visit("connections")
    pages.press("Add Connection")
    pages.fill({"connection_id": name})
    pages.choose("Snowpipe Streaming")
    host, port = service.url.rsplit(":", 1)
    pages.fill({"host": host, "port": port, "login": service.user, "schema": "PUBLIC"})
    pages.press("Extra Fields", DIALOG)
    extra = {
        "account": service.account,
        "private_key_content": service.key_file.read_text(),
        "database": "LOCAL",
        "table": table,
        "ca_bundle": str(service.ca_file),
    }
    pages.fill({f"element_{field}": text for field, text in extra.items()})
    pages.press("Save", DIALOG)
    pages.wait_until_gone(DIALOG)


def press_test(pages: Pages, name: str) -> str:
    pages.visit("connections")
    pages.press("Test Connection", f"//tr[.//*[normalize-space()='{name}']]")
    return pages.text_of(TOAST)


def test_a_connection_made_with_the_form_passes_its_test(
    pages: Pages, stack: Stack, connection_id: str
) -> None:
    add_connection(pages, stack, connection_id, "TESTED")
    answer = press_test(pages, connection_id)
    assert "Credentials accepted" in answer
    assert "TESTED-STREAMING is there" in answer


def test_the_form_hides_the_key_and_names_every_field(pages: Pages) -> None:
    pages.visit("connections")
    pages.press("Add Connection")
    pages.choose("Snowpipe Streaming")
    for label in ("Account URL", "Port", "User", "Token or key passphrase", "Schema"):
        pages.wait_until_shown(f"{DIALOG}[contains(., '{label}')]")
    pages.press("Extra Fields", DIALOG)
    assert pages.field("element_private_key_content").get_attribute("type") == "password"
    for label in ("Account", "Authentication", "Private key (path)", "Private key (text)", "Default pipe"):
        pages.wait_until_shown(f"{DIALOG}[contains(., '{label}')]")


def test_the_trigger_form_starts_a_run_with_what_was_filled_in(pages: Pages, stack: Stack) -> None:
    table, run_id = f"BY_HAND_{uuid.uuid4().hex[:6].upper()}", f"by_hand_{uuid.uuid4().hex[:6]}"
    pages.visit("dags/many_channels")
    pages.press("Trigger Dag")
    pages.fill({"element_table": table})
    pages.press("Advanced Options", DIALOG)
    pages.fill({"dagRunId": run_id})
    pages.press("Trigger", DIALOG)
    pages.wait_until_at(f"dags/many_channels/runs/{run_id}")
    assert stack.airflow.api.wait_for_run("many_channels", run_id, RUN_SECONDS) == "success"
    assert stack.service.sql(f"SELECT COUNT(*) AS N FROM {table}") == [{"N": 4 * 24}]


@pytest.mark.begins(run=mapped_run)
@pytest.mark.usefixtures("begun")
def test_a_tasks_link_leads_to_the_page_of_its_channel(pages: Pages, stack: Stack) -> None:
    assert stack.airflow.api.wait_for_run("many_channels", "mapped", RUN_SECONDS) == "success"
    channel = "many_channels_station_001"
    with stack.service.client("STATIONS") as client:
        committed = client.channel_statuses([channel])[channel].committed
    assert committed is not None

    pages.visit("dags/many_channels/runs/mapped/tasks/append/mapped/1/details")
    pages.follow("Channel page")

    pages.wait_until_at("snowpipe/connections/snowflake_default/channel?")
    assert pages.text_of("//h1") == f"Channel {channel}"
    assert pages.text_of("//*[@id='committed']") == committed
    assert pages.text_of("//*[@id='target']") == f"{shown(committed)} committed"
    assert pages.text_of("//*[@id='rows_inserted']") == "24"
    assert pages.text_of("//*[@id='rows_rejected']") == "0"

    pages.follow("LOCAL.PUBLIC.STATIONS-STREAMING")
    pages.wait_until_at("snowpipe/connections/snowflake_default/pipe?")
    pages.follow("Ask Snowflake now")
    pages.wait_until_at("snowpipe/connections/snowflake_default/channels?")
    pages.wait_until_shown("//main[contains(., '3 channels, page 1 of 1')]")
    pages.fill({"prefix": channel})
    pages.press("Show")
    pages.wait_until_shown("//main[contains(., '1 channel')]")
    pages.follow(channel)
    assert pages.text_of("//*[@id='committed']") == committed


@pytest.mark.begins(run=mapped_run)
@pytest.mark.usefixtures("begun")
def test_the_page_is_in_airflows_frame_and_leads_to_the_pipe_and_back_to_the_task(
    pages: Pages, stack: Stack
) -> None:
    assert stack.airflow.api.wait_for_run("many_channels", "mapped", RUN_SECONDS) == "success"
    pages.visit("plugin/snowpipe")
    pages.enter_frame()
    pages.wait_until_shown("//h1[normalize-space()='Snowpipe']")
    pages.follow("LOCAL.PUBLIC.STATIONS-STREAMING")
    pages.wait_until_shown("//*[local-name()='svg'][@role='img']")
    pages.wait_until_shown("//table[@id='channels'][contains(., 'many_channels_station_001')]")
    assert pages.text_of("//table[@id='channels']//span[contains(@class, 'state')]") == "COMMITTED"
    pages.follow("many_channels · append [1]")
    pages.leave_frame()
    pages.wait_until_at("dags/many_channels/runs/mapped/tasks/append/mapped/1")


def test_who_is_signed_out_sees_no_channel(stack: Stack) -> None:
    path = f"{stack.airflow.url}/snowpipe/connections/snowflake_default"
    query = {"database": "LOCAL", "schema": "PUBLIC", "pipe": "STATIONS-STREAMING", "channel": "c"}

    for kind in ("channel", "channels"):
        answer = requests.get(f"{path}/{kind}", params=query, timeout=30)
        assert answer.status_code == 401
        assert answer.json() == {"detail": "Not authenticated"}
        forged = {"Authorization": "Bearer e30.e30.e30"}
        assert requests.get(f"{path}/{kind}", params=query, headers=forged, timeout=30).status_code == 403
