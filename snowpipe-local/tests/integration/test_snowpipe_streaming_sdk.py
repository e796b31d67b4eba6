"""What the official ``snowpipe-streaming`` SDK does with the local service beyond the contract."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from snowpipe_local.testing import LocalService
from tests.contract.account import Account

Run = Callable[[str, str], dict[str, Any]]


@pytest.fixture
def run(local_service: LocalService, tmp_path: Path) -> Run:
    """Run a scenario on the default pipe of a table."""
    account = dataclasses.replace(Account.local(local_service), schema="PUBLIC")
    return lambda table, scenario: account.sdk(tmp_path, scenario, f"{table}-STREAMING")


_CREDENTIALS = """
import datetime, decimal
home = Path(os.environ["SNOWPIPE_TEST_HOME"])
client_of = json.loads((home / "oauth_client.json").read_text())
oauth = {
    "authorization_type": "OAUTH",
    "oauth_token_endpoint": properties["url"] + "/oauth/token-request",
    "oauth_client_id": client_of["client_id"],
    "oauth_client_secret": client_of["client_secret"],
}
key = properties.pop("private_key")
pat = {"authorization_type": "PAT", "personal_access_token": (home / "demo_pat").read_text().strip()}
refreshed = {**oauth, "oauth_refresh_token": client_of["refresh_token"]}
row = {"name": "n", "at": datetime.datetime(2026, 1, 1), "v": {"k": [1]}, "raw": b"hi"}
channels = []
for number, credential in enumerate([{"private_key": key}, pat, oauth, refreshed]):
    client = connect(f"client{number}", **credential)
    channel, _ = client.open_channel(f"c{number}")
    channel.append_row({"id": decimal.Decimal(number), **row}, "1")
    channels.append((client, channel))
for _, channel in channels:
    committed(channel, 1)
tokens = channels[0][0].get_latest_committed_offset_tokens(["c0", "nowhere"])
given["target"][2] = "NO_SUCH_TABLE-STREAMING"
started, error = time.monotonic(), ""
try:
    connect("unknown", private_key=key, misclassified_404_retry_total_backoff_seconds="5")
except Exception as caught:
    error = str(caught)
inserted = [channel.get_channel_status().rows_inserted_count for _, channel in channels]
quick = time.monotonic() - started < 20
print(json.dumps({"inserted": inserted, "tokens": tokens, "error": error, "quick": quick}), flush=True)
os._exit(0)
"""


def test_values_of_python_are_committed_with_every_credential(
    local_service: LocalService, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_service.sql("CREATE TABLE t8 (id INT, name VARCHAR, at TIMESTAMP_NTZ, v VARIANT, raw BINARY)")
    monkeypatch.setenv("SNOWPIPE_TEST_HOME", str(local_service.data_dir))
    seen = run("T8", _CREDENTIALS)
    assert (seen["inserted"], seen["tokens"]) == ([1, 1, 1, 1], {"c0": "1", "nowhere": None})
    assert ("ERR_TABLE_DOES_NOT_EXIST_NOT_AUTHORIZED" in seen["error"], seen["quick"]) == (True, True)
    assert local_service.sql("SELECT * FROM t8 ORDER BY id") == [
        {"ID": number, "NAME": "n", "AT": "2026-01-01T00:00:00", "V": {"k": [1]}, "RAW": "6869"}
        for number in range(4)
    ]


_ELASTIC = """
client = connect(data_retry_total_backoff_seconds="1")
channel = client.get_elastic_channel()
succeeded, failed = [], []
channel.set_success_handler(lambda detail: succeeded.extend(detail.append_tokens))
channel.set_error_handler(lambda detail: failed.extend(detail.append_tokens))

def handled(count):
    deadline = time.monotonic() + 60
    while len(succeeded) + len(failed) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    print(json.dumps({"succeeded": sorted(succeeded), "failed": failed}), flush=True)
    os._exit(0)
"""


def test_elastic_handlers_are_called_for_every_append_with_its_token(
    local_service: LocalService, run: Run
) -> None:
    local_service.sql("CREATE TABLE t11 (id INT, filler VARCHAR)")
    appended = """
for number in range(20):
    channel.append_row({"id": number, "filler": "x"}, f"row{number}")
channel.append_rows([{"id": i, "filler": "y" * 500} for i in range(20, 5000)], "file")
channel.wait_for_flush(60)
handled(21)
"""
    seen = run("T11", _ELASTIC + appended)
    assert seen == {"succeeded": sorted(["file", *(f"row{number}" for number in range(20))]), "failed": []}
    local_service.set_faults("answer-append=403x100")
    seen = run("T11", f'{_ELASTIC}channel.append_row({{"id": 1}}, "doomed")\nhandled(1)\n')
    local_service.admin("faults", clear=True)
    assert seen == {"succeeded": [], "failed": ["doomed"]}
    assert local_service.sql("SELECT count(*) n, count(DISTINCT id) d FROM t11") == [{"N": 5000, "D": 5000}]
