"""The official ``snowpipe-streaming`` SDK, unmodified, over TLS against the local service.

Each scenario runs in a child process because the SDK reads ``SSL_CERT_FILE`` when it is loaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

from snowpipe_local.testing import LocalService
from tests.streaming_rest import Rest, continuation

from tests.conftest import SetFaults

_PRELUDE = """
import json, os, sys, time
from snowflake.ingest.streaming import StreamingIngestClient

PROPERTIES = {
    "account": os.environ["SNOWPIPE_LOCAL_ACCOUNT"],
    "user": os.environ["SNOWPIPE_LOCAL_USER"],
    "url": os.environ["SNOWPIPE_LOCAL_URL"],
    "private_key": open(os.environ["SNOWPIPE_LOCAL_PRIVATE_KEY_FILE"]).read(),
    "mgmt_retry_total_backoff_seconds": "5",
    "data_retry_total_backoff_seconds": "5",
    "misclassified_404_retry_total_backoff_seconds": "5",
    "non_scoped_auth_failure_retry_total_backoff_seconds": "2",
    "open_channel_409_retry_total_backoff_seconds": "10",
}

def connect(table, name="client", **more):
    return StreamingIngestClient(
        name, "LOCAL", "PUBLIC", table + "-STREAMING", profile_json=None, properties={**PROPERTIES, **more})

def committed(channel, token, seconds=300):
    channel.wait_for_commit(lambda seen: seen is not None and int(seen) >= token, timeout_seconds=seconds)

def report(**values):
    print("REPORT " + json.dumps(values))
"""


def _run(service: LocalService, scenario: str, timeout: float = 600) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _PRELUDE + textwrap.dedent(scenario)],
        env=service.process_env({**os.environ, "SS_LOG_LEVEL": "warn"}),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    reports = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert reports, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    report: dict[str, Any] = json.loads(reports[-1].removeprefix("REPORT "))
    return report


def test_rows_of_append_rows_are_in_the_table_when_wait_for_commit_returns(
    local_service: LocalService,
) -> None:
    local_service.sql(
        "CREATE OR REPLACE TABLE t1 (id INT, name VARCHAR, at TIMESTAMP_NTZ, v VARIANT, raw BINARY)"
    )
    seen = _run(
        local_service,
        """
        import datetime, decimal
        client = connect("T1")
        channel, status = client.open_channel("c0")
        opened = [status.status_code, status.latest_committed_offset_token]
        channel.append_rows(
            [{"id": i, "name": f"n{i}", "at": datetime.datetime(2026, 1, 1, 0, 0, i), "v": {"k": [i]},
              "raw": b"hi"} for i in range(10)], "0", "9")
        channel.append_row({"id": decimal.Decimal("10"), "name": None}, "10")
        committed(channel, 10)
        status = channel.get_channel_status()
        report(opened=opened, code=status.status_code, token=status.latest_committed_offset_token,
               inserted=status.rows_inserted_count, errors=status.rows_error_count,
               tokens=client.get_latest_committed_offset_tokens(["c0", "nowhere"]))
        channel.close(); client.close()
        """,
    )
    assert seen["opened"] == ["SUCCESS", None]
    assert (seen["code"], seen["token"], seen["inserted"], seen["errors"]) == ("SUCCESS", "10", 11, 0)
    assert seen["tokens"] == {"c0": "10", "nowhere": None}
    rows = local_service.sql("SELECT * FROM t1 ORDER BY id")
    assert [row["ID"] for row in rows] == list(range(11))
    assert rows[3] == {"ID": 3, "NAME": "n3", "AT": "2026-01-01T00:00:03", "V": {"k": [3]}, "RAW": "6869"}


def test_a_dropped_channel_starts_over_without_a_token(local_service: LocalService) -> None:
    local_service.sql("CREATE OR REPLACE TABLE t4 (id INT)")
    seen = _run(
        local_service,
        """
        client = connect("T4")
        channel, _ = client.open_channel("c0")
        channel.append_row({"id": 0}, "7")
        committed(channel, 7)
        client.drop_channel("c0")
        # The SDK serves statuses from a cache that it refreshes every second.
        deadline, gone = time.monotonic() + 20, "SUCCESS"
        while gone == "SUCCESS" and time.monotonic() < deadline:
            gone = client.get_channel_statuses(["c0"])["c0"].status_code
        channel, status = client.open_channel("c0")
        report(gone=gone, token=status.latest_committed_offset_token)
        channel.close(); client.close()
        """,
    )
    assert seen == {"gone": "ERR_CHANNEL_DOES_NOT_EXIST_OR_NOT_AUTHORIZED", "token": None}


def test_an_unknown_table_fails_at_once_with_its_code(local_service: LocalService) -> None:
    seen = _run(
        local_service,
        """
        started = time.monotonic()
        try:
            connect("NO_SUCH_TABLE"); error = ""
        except Exception as caught:
            error = str(caught)
        report(error=error, quick=time.monotonic() - started < 20)
        """,
    )
    assert "ERR_TABLE_DOES_NOT_EXIST_NOT_AUTHORIZED" in seen["error"]
    assert seen["quick"]


def test_rows_are_committed_with_pat_and_with_oauth(local_service: LocalService) -> None:
    local_service.sql("CREATE OR REPLACE TABLE t8 (id INT)")
    seen = _run(
        local_service,
        f"""
        home = {str(local_service.data_dir)!r}
        del PROPERTIES["private_key"]
        token = open(home + "/demo_pat").read().strip()
        given = json.load(open(home + "/oauth_client.json"))
        oauth = {{
            "authorization_type": "OAUTH",
            "oauth_token_endpoint": os.environ["SNOWPIPE_LOCAL_URL"] + "/oauth/token-request",
            "oauth_client_id": given["client_id"],
            "oauth_client_secret": given["client_secret"],
        }}
        each = [{{"authorization_type": "PAT", "personal_access_token": token}}, oauth]
        each.append({{**oauth, "oauth_refresh_token": given["refresh_token"]}})
        channels = []
        for number, auth in enumerate(each):
            client = connect("T8", f"client{{number}}", **auth)
            channel, _ = client.open_channel(f"c{{number}}")
            channel.append_row({{"id": number}}, "1")
            channels.append((client, channel))
        for _, channel in channels:
            committed(channel, 1)
        report(inserted=[channel.get_channel_status().rows_inserted_count for _, channel in channels])
        sys.stdout.flush(); os._exit(0)
        """,
    )
    assert seen == {"inserted": [1, 1, 1]}
    assert local_service.sql("SELECT id FROM t8 ORDER BY id") == [{"ID": number} for number in range(3)]


def test_statuses_of_300_channels_are_answered_in_requests_of_100(
    local_service: LocalService,
) -> None:
    local_service.sql("CREATE OR REPLACE TABLE t9 (id INT)")
    rest = Rest(local_service, "T9")
    for number in range(150):
        assert rest.open(f"c{number}", offset_token=str(number)).status_code == 200
    seen = _run(
        local_service,
        """
        client = connect("T9")
        names = [f"c{number}" for number in range(300)]
        tokens = client.get_latest_committed_offset_tokens(names)
        statuses = client.get_channel_statuses(names)
        report(
            known=sum(tokens[f"c{n}"] == str(n) for n in range(150)),
            unknown=sum(tokens[f"c{n}"] is None for n in range(150, 300)),
            codes=sorted({statuses[name].status_code for name in names}),
            count=[len(tokens), len(statuses)],
        )
        client.close()
        """,
    )
    assert seen["count"] == [300, 300]
    assert (seen["known"], seen["unknown"]) == (150, 150)
    assert seen["codes"] == ["ERR_CHANNEL_DOES_NOT_EXIST_OR_NOT_AUTHORIZED", "SUCCESS"]


def test_elastic_handlers_are_called_for_every_append_with_its_token(local_service: LocalService) -> None:
    local_service.sql("CREATE OR REPLACE TABLE t11 (id INT, filler VARCHAR)")
    seen = _run(
        local_service,
        """
        client = connect("T11")
        channel = client.get_elastic_channel()
        succeeded, failed = [], []
        channel.set_success_handler(lambda detail: succeeded.extend(detail.append_tokens))
        channel.set_error_handler(lambda detail: failed.extend(detail.append_tokens))
        for number in range(20):
            channel.append_row({"id": number, "filler": "x"}, f"row{number}")
        channel.append_rows([{"id": i, "filler": "y" * 500} for i in range(20, 5000)], "file")
        channel.wait_for_flush(60)
        deadline = time.monotonic() + 60
        while len(succeeded) + len(failed) < 21 and time.monotonic() < deadline:
            time.sleep(0.05)
        report(succeeded=sorted(succeeded), failed=failed)
        client.close()
        """,
    )
    assert seen["failed"] == []
    assert seen["succeeded"] == sorted(["file", *(f"row{number}" for number in range(20))])
    assert local_service.sql("SELECT count(*) n, count(DISTINCT id) d FROM t11") == [{"N": 5000, "D": 5000}]


def test_the_elastic_error_handler_is_called_for_an_append_that_failed(
    local_service: LocalService, faults: SetFaults
) -> None:
    service = local_service
    service.sql("CREATE TABLE failing (id INT)")
    faults("answer-append=403x100")
    seen = _run(
        service,
        """
        client = connect("FAILING", data_retry_total_backoff_seconds="1")
        channel = client.get_elastic_channel()
        succeeded, failed = [], []
        channel.set_success_handler(lambda detail: succeeded.extend(detail.append_tokens))
        channel.set_error_handler(lambda detail: failed.extend(detail.append_tokens))
        channel.append_row({"id": 1}, "doomed")
        deadline = time.monotonic() + 60
        while not failed and not succeeded and time.monotonic() < deadline:
            time.sleep(0.05)
        report(succeeded=succeeded, failed=failed)
        sys.stdout.flush(); os._exit(0)
        """,
    )
    assert seen == {"succeeded": [], "failed": ["doomed"]}
    assert service.sql("SELECT count(*) n FROM failing") == [{"N": 0}]


def test_a_client_on_a_pipe_that_failed_over_is_invalid_and_a_new_one_resumes(
    local_service: LocalService,
) -> None:
    service = local_service
    service.sql("CREATE TABLE moved (id INT)")
    rest = Rest(service, "MOVED")
    rest.append("c0", continuation(rest.open("c0")), b'{"id": 0}\n', "0")
    rest.wait_for_token("c0", "0")
    service.admin("failover", pipe="LOCAL.PUBLIC.MOVED-STREAMING")
    seen = _run(
        service,
        """
        try:
            client = connect("MOVED", "during")
            client.open_channel("c0"); error = ""
        except Exception as caught:
            error = str(caught)
        report(error=error)
        sys.stdout.flush(); os._exit(0)
        """,
    )
    assert "410" in seen["error"] or "FAILED_OVER" in seen["error"].upper()
    service.admin("failover", pipe="LOCAL.PUBLIC.MOVED-STREAMING", back=True)
    again = _run(
        service,
        """
        client = connect("MOVED", "again")
        channel, status = client.open_channel("c0")
        channel.append_row({"id": 1}, "1")
        committed(channel, 1)
        report(start=status.latest_committed_offset_token)
        channel.close(); client.close()
        """,
    )
    assert again == {"start": "0"}
    assert service.sql("SELECT id FROM moved ORDER BY id") == [{"ID": 0}, {"ID": 1}]
