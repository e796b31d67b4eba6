"""The official ``snowpipe-streaming`` SDK, unmodified, over TLS against the local service.

Each scenario runs in a child process because the SDK reads ``SSL_CERT_FILE`` when it is loaded.
"""

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

from snowpipe_local.testing import LocalService

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


def test_values_of_python_are_committed_with_every_credential(local_service: LocalService) -> None:
    local_service.sql("CREATE TABLE t8 (id INT, name VARCHAR, at TIMESTAMP_NTZ, v VARIANT, raw BINARY)")
    seen = _run(
        local_service,
        f"""
        import datetime, decimal
        home = {str(local_service.data_dir)!r}
        token = open(home + "/demo_pat").read().strip()
        given = json.load(open(home + "/oauth_client.json"))
        oauth = {{
            "authorization_type": "OAUTH",
            "oauth_token_endpoint": os.environ["SNOWPIPE_LOCAL_URL"] + "/oauth/token-request",
            "oauth_client_id": given["client_id"],
            "oauth_client_secret": given["client_secret"],
        }}
        key = PROPERTIES.pop("private_key")
        pat = {{"authorization_type": "PAT", "personal_access_token": token}}
        refreshed = {{**oauth, "oauth_refresh_token": given["refresh_token"]}}
        each = [{{"private_key": key}}, pat, oauth, refreshed]
        row = {{"name": "n", "at": datetime.datetime(2026, 1, 1), "v": {{"k": [1]}}, "raw": b"hi"}}
        channels = []
        for number, auth in enumerate(each):
            client = connect("T8", f"client{{number}}", **auth)
            channel, _ = client.open_channel(f"c{{number}}")
            channel.append_row({{"id": decimal.Decimal(number), **row}}, "1")
            channels.append((client, channel))
        for _, channel in channels:
            committed(channel, 1)
        tokens = channels[0][0].get_latest_committed_offset_tokens(["c0", "nowhere"])
        started = time.monotonic()
        try:
            connect("NO_SUCH_TABLE", "unknown", private_key=key); error = ""
        except Exception as caught:
            error = str(caught)
        report(inserted=[channel.get_channel_status().rows_inserted_count for _, channel in channels],
               tokens=tokens, error=error, quick=time.monotonic() - started < 20)
        sys.stdout.flush(); os._exit(0)
        """,
    )
    assert (seen["inserted"], seen["tokens"]) == ([1, 1, 1, 1], {"c0": "1", "nowhere": None})
    assert ("ERR_TABLE_DOES_NOT_EXIST_NOT_AUTHORIZED" in seen["error"], seen["quick"]) == (True, True)
    assert local_service.sql("SELECT * FROM t8 ORDER BY id") == [
        {"ID": number, "NAME": "n", "AT": "2026-01-01T00:00:00", "V": {"k": [1]}, "RAW": "6869"}
        for number in range(4)
    ]


_ELASTIC = """
channel = client.get_elastic_channel()
succeeded, failed = [], []
channel.set_success_handler(lambda detail: succeeded.extend(detail.append_tokens))
channel.set_error_handler(lambda detail: failed.extend(detail.append_tokens))

def handled(count):
    deadline = time.monotonic() + 60
    while len(succeeded) + len(failed) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    report(succeeded=sorted(succeeded), failed=failed)
    sys.stdout.flush(); os._exit(0)
"""


def test_elastic_handlers_are_called_for_every_append_with_its_token(
    local_service: LocalService, faults: SetFaults
) -> None:
    local_service.sql("CREATE TABLE t11 (id INT, filler VARCHAR)")
    appended = """
for number in range(20):
    channel.append_row({"id": number, "filler": "x"}, f"row{number}")
channel.append_rows([{"id": i, "filler": "y" * 500} for i in range(20, 5000)], "file")
channel.wait_for_flush(60)
handled(21)
"""
    seen = _run(local_service, f'client = connect("T11")\n{_ELASTIC}{appended}')
    assert seen == {"succeeded": sorted(["file", *(f"row{number}" for number in range(20))]), "failed": []}
    faults("answer-append=403x100")
    client = 'client = connect("T11", data_retry_total_backoff_seconds="1")\n'
    seen = _run(local_service, f'{client}{_ELASTIC}channel.append_row({{"id": 1}}, "doomed")\nhandled(1)\n')
    assert seen == {"succeeded": [], "failed": ["doomed"]}
    assert local_service.sql("SELECT count(*) n, count(DISTINCT id) d FROM t11") == [{"N": 5000, "D": 5000}]
