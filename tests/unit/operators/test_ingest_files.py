"""The ingest operator in a task: files that COPY has loaded are refused, whether a table is named or not."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
from airflow_provider_snowpipe.streaming.auth import KeyPair
from tests.fake_account import BEFORE, MISSING, FakeAccount, Pipe, StatementError
from tests.unit.operators.account_in_task import install, task_context

PIPE = "LOCAL.PUBLIC.P"
REFUSED = 3001


@pytest.fixture(scope="module")
def key_pair() -> KeyPair:
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyPair("ACC", "U", pem)


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, key_pair: KeyPair) -> FakeAccount:
    made = FakeAccount()
    install(made, monkeypatch, key_pair)
    made.pipes[PIPE] = Pipe("COPY INTO t FROM '@S'")
    for path in ("a", "b"):
        made.put(path, f"{path}1")
    return made


def ingest(**given: Any) -> Any:
    arguments = {"files": ["a", "b"], "load_timeout": 5.0, "poll_interval": 0.01, **given}
    operator = SnowpipeIngestFilesOperator(
        task_id="ingest", snowflake_conn_id="account", pipe="P", **arguments
    )
    return operator.execute(task_context(began=dt.datetime.now(dt.UTC)))


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "leaves"])
@pytest.mark.parametrize("given", [{}, {"stage": "@S"}, {"table": "T"}], ids=["pipe", "stage", "table"])
def test_files_that_copy_has_loaded_are_refused(
    account: FakeAccount, given: dict[str, Any], waits: bool
) -> None:
    account.copy("a")
    with pytest.raises(AirflowException) as refused:
        ingest(wait_for_load=waits, **given)

    assert "'a' by COPY" in str(refused.value)
    assert "force=True" in str(refused.value)
    assert account.rows == ["a1"]


def test_the_table_of_another_schema_is_asked(account: FakeAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    account.pipes[PIPE] = Pipe("COPY INTO other.place.far FROM @S")
    asked: list[str] = []
    known = account._copy_history

    def ask(statement: str, values: list[str]) -> list[dict[str, Any]]:
        asked.append(values[0])
        return known(statement, values)

    monkeypatch.setattr(account, "_copy_history", ask)
    ingest(wait_for_load=False)

    assert asked == ['"OTHER"."PLACE"."FAR"']


def test_force_submits_them_all_the_same(account: FakeAccount) -> None:
    account.copy("a")
    ingest(force=True, wait_for_load=False)

    assert sorted(account.rows) == ["a1", "a1", "b1"]


def test_files_that_nobody_has_loaded_are_loaded_once_by_two_tries(account: FakeAccount) -> None:
    ingest(wait_for_load=False)
    done = ingest()

    assert sorted(account.rows) == ["a1", "b1"]
    assert sorted(done["loaded_before"]) == ["a", "b"]


@pytest.mark.parametrize(
    ("call", "errno"), [("DESCRIBE", MISSING), ("HISTORY", REFUSED), ("HISTORY", MISSING)]
)
def test_a_role_that_may_not_look_is_told_so_in_the_log(
    account: FakeAccount, caplog: pytest.LogCaptureFixture, call: str, errno: int
) -> None:
    account.fault(call, BEFORE, StatementError(errno, "not authorized"))
    with caplog.at_level(logging.WARNING):
        ingest(wait_for_load=False)

    assert "whether COPY has loaded these files is not known" in caplog.text
    assert sorted(account.rows) == ["a1", "b1"]


def test_an_account_that_fails_otherwise_is_no_reason_to_submit(account: FakeAccount) -> None:
    account.fault("HISTORY", BEFORE, StatementError(604, "canceled"))
    with pytest.raises(Exception, match="canceled"):
        ingest(wait_for_load=False)

    assert account.rows == []
