"""The connection form, a trigger form and the pages of channels, used in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import browser
import pytest
import requests
from browser import DIALOG, Pages
from conftest import Stack
from runs import RUN_SECONDS, DagRun, mapped_run

from tests.checkpoints import shown

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing())),
]
TOAST = "//*[@data-scope='toast' and @data-part='root']"
LABELS = ("Account URL", "Port", "User", "Token or key passphrase", "Schema")
EXTRA_LABELS = ("Account", "Authentication", "Private key (path)", "Private key (text)", "Default pipe")


@pytest.fixture(scope="module")
def pages(stack: Stack) -> Iterator[Pages]:
    with browser.opened(stack.airflow) as pages:
        pages.sign_in(*stack.airflow.login)
        yield pages


def test_a_connection_made_with_the_form_hides_its_key_and_passes_its_test(
    pages: Pages, stack: Stack
) -> None:
    service = stack.service
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


def test_the_trigger_form_starts_a_run_with_what_was_filled_in(pages: Pages, stack: Stack) -> None:
    pages.visit("dags/many_channels")
    pages.press("Trigger Dag")
    pages.fill({"element_table": "BY_HAND"})
    pages.press("Advanced Options", DIALOG)
    pages.fill({"dagRunId": "by_hand"})
    pages.press("Trigger", DIALOG)
    pages.wait_until_at("dags/many_channels/runs/by_hand")
    assert stack.airflow.api.wait_for_run("many_channels", "by_hand", RUN_SECONDS) == "success"
    assert stack.service.sql("SELECT COUNT(*) AS N FROM BY_HAND") == [{"N": 4 * 24}]


@pytest.mark.begins(run=mapped_run)
def test_a_tasks_link_leads_to_the_page_of_its_channel(pages: Pages, stack: Stack, begun: DagRun) -> None:
    begun.wait()
    channel = "many_channels_station_001"
    with stack.service.client("STATIONS") as client:
        committed = client.channel_statuses([channel])[channel].committed

    pages.visit("dags/many_channels/runs/mapped/tasks/append/mapped/1/details")
    pages.follow("Channel page")

    pages.wait_until_at("snowpipe/connections/snowflake_default/channel?")
    assert pages.text_of("//h1") == f"Channel {channel}"
    texts = [pages.text_of(f"//*[@id='{one}']") for one in ("committed", "rows_inserted", "rows_rejected")]
    assert texts == [committed, "24", "0"]
    assert pages.text_of("//*[@id='target']") == f"{shown(committed)} committed"

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
def test_the_page_is_in_airflows_frame_and_leads_to_the_pipe_and_back_to_the_task(
    pages: Pages, begun: DagRun
) -> None:
    begun.wait()
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
    forged = {"Authorization": "Bearer e30.e30.e30"}

    for kind in ("channel", "channels"):
        answer = requests.get(f"{path}/{kind}", params=query, timeout=30)
        assert (answer.status_code, answer.json()) == (401, {"detail": "Not authenticated"})
        assert requests.get(f"{path}/{kind}", params=query, headers=forged, timeout=30).status_code == 403
