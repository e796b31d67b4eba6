"""The trigger of a statement's end: what the service reports of it is its end, and only silence is lost."""

import asyncio
from dataclasses import replace

import pytest

from airflow_provider_snowpipe.bulk.statement_client import StatementState
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.triggers.statement import SnowpipeStatementTrigger
from tests.unit.triggers.running import payloads

pytestmark = pytest.mark.usefixtures("jumping_loop")

RUNS, DONE = StatementState("h"), StatementState("h", [])
DOWN, WRONG = errors.RetriesExhaustedError("down"), errors.ConfigurationError("wrong")
ENDS_BEFORE = StatementState("h", [])
UNKNOWN = errors.ApiError("no such statement", http_status=404)
STATEMENT = ("h", "COPY INTO T")


class Client:
    """Answers as scripted."""

    def __init__(self, *answers):
        self.left, self.cancelled, self.is_closed = list(answers), [], False

    def state(self, *asked):
        assert asked == STATEMENT
        answer = self.left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cancel(self, *asked):
        self.cancelled.append(asked)
        return not self.left or self.state(*asked) is not ENDS_BEFORE

    def close(self):
        self.is_closed = True


@pytest.fixture
def serve(monkeypatch):
    """Make the trigger of a statement that a client is asked for."""

    def make(client):
        async def made(*_, **__):
            if isinstance(client, Exception):
                raise client
            return client

        monkeypatch.setattr(SnowpipeBulkHook, "in_thread", made)
        handle, statement = STATEMENT
        given = {"handle": handle, "statement": statement, "snowflake_conn_id": "c"}
        return SnowpipeStatementTrigger(**given, max_consecutive_errors=3)

    return make


def test_one_event_reports_the_end_or_why_nobody_knows(serve):
    for answers, status, message in [
        ([RUNS, RUNS, DONE], "ended", ""),
        ([RUNS, errors.SqlError("it failed")], "ended", ""),
        ([UNKNOWN], "ended", ""),
        ([DOWN, DOWN, RUNS, DOWN, DOWN, DONE], "ended", ""),
        ([RUNS, DOWN, DOWN, DOWN], "lost", "down"),
        ([WRONG], "lost", "wrong"),
    ]:
        client = Client(*answers)
        assert payloads(serve(client)) == [{"status": status, "message": message}]
        assert (client.left, client.is_closed) == ([], True)
    assert payloads(serve(WRONG)) == [{"status": "lost", "message": "wrong"}]


def test_a_statement_that_runs_for_too_long_is_cancelled(serve):
    for last, status, message in [
        ([], "lost", "execution_timeout is over, and its statement cancelled"),
        ([DOWN], "lost", "execution_timeout is over, and no statement cancelled: down"),
        ([ENDS_BEFORE], "ended", ""),
    ]:
        client = Client(RUNS, *last)
        (found,) = payloads(replace(serve(client), deadline=0.0))
        assert (found["status"], client.cancelled) == (status, [STATEMENT])
        assert message in found["message"]


@pytest.mark.parametrize(("answers", "logged"), [([], ""), ([DOWN], "COPY INTO T is not cancelled: down")])
def test_the_statement_of_a_task_that_is_cleared_is_cancelled(serve, capsys, answers, logged):
    client = Client(*answers)
    asyncio.run(serve(client).on_kill())
    assert (client.cancelled, client.is_closed) == ([STATEMENT], True)
    assert logged in capsys.readouterr().out
