"""The account of the contract: the local service, or the one of ``make test-account CONNECTION=…``."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.account import Account

CONNECTION = os.environ.get("SNOWPIPE_CONTRACT_CONNECTION", "")


@pytest.fixture(scope="module")
def account(request: pytest.FixtureRequest) -> Iterator[Account]:
    """The account, with a scratch schema of the module that is dropped at its end."""
    account = (
        Account.named(CONNECTION) if CONNECTION else Account.local(request.getfixturevalue("shared_service"))
    )
    with pytest.MonkeyPatch.context() as environment:
        if account.ca_file:
            environment.setenv("REQUESTS_CA_BUNDLE", account.ca_file)
        account.rows(f'CREATE SCHEMA "{account.database}"."{account.schema}"')
        try:
            yield account
        finally:
            account.rows(f'DROP SCHEMA "{account.database}"."{account.schema}"')
            account.connection.close()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name each guess of ours that this account does not share."""
    wrong = [report for report in terminalreporter.stats.get("failed", ()) if "guess" in report.keywords]
    for report in wrong:
        terminalreporter.write_line(f"a guess that does not hold here: {report.nodeid}")
