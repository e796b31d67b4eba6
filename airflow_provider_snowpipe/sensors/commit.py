"""The sensor that lets downstream tasks run only when rows are committed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.streaming.commit_wait import CommitTargets, FailureReason, WaitState, judge
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    PipeFailedOverError,
    RetriesExhaustedError,
    SnowpipeError,
)
from airflow_provider_snowpipe.streaming.offsets import offset_class
from airflow_provider_snowpipe.triggers.commit import POLL_BUDGET_SECONDS, SnowpipeCommitTrigger

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

_RETRYABLE = frozenset({FailureReason.TOO_MANY_ERRORS.value, FailureReason.REFUSED.value})


class SnowpipeCommitSensor(BaseSensorOperator):
    """Succeed only when every channel has committed its target token, so that its rows can be read.

    Tokens are compared by their format's order; a channel without a committed token never counts. The
    task's value is the committed token of each channel.

    :param targets: the target offset token of each channel: a mapping, its JSON text, or the XCom
        ``targets`` of a stream task, ``load.output["targets"]`` (templated)
    :param offset_format: the tokens' format: ``file:line``, ``integer``, ``topic:partition:offset``,
        ``batch:row``, ``lexicographic``, or the dotted path of a subclass of ``Offset``
    :param table: the channels belong to this table's default pipe (templated)
    :param pipe: the channels belong to this pipe; not together with ``table`` (templated)
    :param database: the pipe's database, None for the connection's (templated)
    :param schema: the pipe's schema, None for the connection's (templated)
    :param snowflake_conn_id: the connection's id (templated)
    :param deferrable: True waits in the triggerer, after one look in the worker
    :param max_consecutive_errors: fail after this many looks in a row that failed for a passing reason; in
        the mode ``reschedule`` each look is a new process, so that only ``timeout`` ends such a row
    :param fail_on_rejected_rows: True fails as soon as the service has skipped a row of a channel
    :param rejected_baseline: with it, rows skipped before do not count, by channel; without it, every row
        skipped in the channel's life does (templated)
    """

    template_fields: Sequence[str] = (
        "targets",
        "table",
        "pipe",
        "database",
        "schema",
        "snowflake_conn_id",
        "rejected_baseline",
    )
    ui_color = "#d3edf9"

    def __init__(
        self,
        *,
        targets: Any,
        offset_format: str = "file:line",
        table: str | None = None,
        pipe: str | None = None,
        database: str | None = None,
        schema: str | None = None,
        snowflake_conn_id: str = SnowpipeHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        max_consecutive_errors: int = 10,
        fail_on_rejected_rows: bool = False,
        rejected_baseline: Any = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("poke_interval", 5)
        super().__init__(**kwargs)
        self.targets = targets
        self.offset_format = offset_format
        self.table = table
        self.pipe = pipe
        self.database = database
        self.schema = schema
        self.snowflake_conn_id = snowflake_conn_id
        self.deferrable = deferrable
        self.max_consecutive_errors = max_consecutive_errors
        self.fail_on_rejected_rows = fail_on_rejected_rows
        self.rejected_baseline = rejected_baseline
        self._errors = 0
        if table is not None and pipe is not None:
            raise ConfigurationError(f"table {table!r} and pipe {pipe!r} are both given: drop one of them")
        if max_consecutive_errors < 1:
            raise ConfigurationError(f"max_consecutive_errors is {max_consecutive_errors}: give 1 or more")
        offset_class(offset_format)

    def execute(self, context: Context) -> Any:
        """Look once, then wait in the worker or, when deferrable, in the triggerer."""
        if not self.deferrable:
            return super().execute(context)
        seen = self._first_look(context)
        if seen.is_done:
            return seen.xcom_value
        self.defer(
            trigger=SnowpipeCommitTrigger(
                targets=_mapping("targets", self.targets),
                offset_format=self.offset_format,
                snowflake_conn_id=self.snowflake_conn_id,
                table=self.table,
                pipe=self.pipe,
                database=self.database,
                schema=self.schema,
                poll_interval=self.poke_interval,
                max_consecutive_errors=self.max_consecutive_errors,
                fail_on_rejected_rows=self.fail_on_rejected_rows,
                rejected_baseline=self._baseline(),
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def _first_look(self, context: Context) -> PokeReturnValue:
        """Poke with the meaning that ``soft_fail`` and ``never_fail`` have in the mode ``poke``."""
        try:
            return self.poke(context)
        except AirflowException as error:
            if self.never_fail or (self.soft_fail and isinstance(error, AirflowFailException)):
                raise AirflowSkipException(str(error)) from error
            raise

    def poke(self, context: Context) -> PokeReturnValue:
        """Look at the channels once.

        :raises AirflowFailException: if the wait cannot end well, or the settings are wrong
        """
        from airflow_provider_snowpipe.streaming.retry import RetryPolicy

        try:
            wanted = CommitTargets.parse(
                _mapping("targets", self.targets),
                offset_class(self.offset_format),
                fail_on_rejected_rows=self.fail_on_rejected_rows,
                rejected_baseline=self._baseline(),
            )
            statuses = self._hook().channel_statuses(
                list(wanted.targets), retry=RetryPolicy(budget_seconds=POLL_BUDGET_SECONDS)
            )
        except (RetriesExhaustedError, PipeFailedOverError) as error:
            return self._endure(error)
        except ConfigurationError as error:
            raise AirflowFailException(f"{FailureReason.CONFIGURATION}: {error}") from error
        except SnowpipeError as error:
            raise AirflowException(f"{FailureReason.REFUSED}: {error}") from error
        self._errors = 0
        verdict = judge(statuses, wanted)
        self.log.info("%s", verdict)
        if verdict.state is WaitState.FAILED:
            raise AirflowFailException(f"{verdict.reason}: {verdict.message}")
        return PokeReturnValue(verdict.state is WaitState.COMPLETE, dict(verdict.tokens))

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, str]:
        """Turn the trigger's event into the task's end.

        :param event: the payload
        :return: the committed token of each channel
        :raises AirflowFailException: if the wait failed for a reason that a retry cannot mend
        :raises AirflowException: if it failed for another one
        """
        if event["status"] == "success":
            tokens: dict[str, str] = event["tokens"]
            self.log.info("%d of %d channels committed", len(tokens), len(tokens))
            return tokens
        text = f"{event['reason']}: {event['message']}"
        raise AirflowException(text) if event["reason"] in _RETRYABLE else AirflowFailException(text)

    def _hook(self) -> SnowpipeHook:
        return SnowpipeHook(
            self.snowflake_conn_id,
            table=self.table,
            pipe=self.pipe,
            database=self.database,
            schema=self.schema,
        )

    def _baseline(self) -> Mapping[str, int] | None:
        return (
            None if self.rejected_baseline is None else _mapping("rejected_baseline", self.rejected_baseline)
        )

    def _endure(self, error: SnowpipeError) -> PokeReturnValue:
        self._errors += 1
        if self._errors >= self.max_consecutive_errors:
            raise AirflowException(
                f"{FailureReason.TOO_MANY_ERRORS}: {self._errors} looks in a row failed, the last: {error}"
            ) from error
        self.log.warning("look failed (%d in a row): %s", self._errors, error)
        return PokeReturnValue(False)


def _mapping(name: str, value: Any) -> dict[str, Any]:
    """Take a mapping, or the JSON text of one, as a template renders it."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ConfigurationError(
                f"{name} is the text {value[:80]!r}, which is no JSON object: give a mapping, an XCom such "
                'as load.output["targets"], or a template that ends in "| tojson"'
            ) from None
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"{name} is {value!r}: give a mapping of channel names, such as the XCom 'targets' of the load"
        )
    return dict(value)
