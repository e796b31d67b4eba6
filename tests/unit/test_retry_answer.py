"""One answer to "can a retry help?": the class of the error has it, and whoever ends a task reads it."""

import importlib
import pkgutil

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowOptionalProviderFeatureException,
)

import airflow_provider_snowpipe
from airflow_provider_snowpipe.bulk.files_watch import FilesFailure, FilesWatch, Tolerance, load_failure
from airflow_provider_snowpipe.bulk.load_history import PolledLoads
from airflow_provider_snowpipe.bulk.staged_files import ExpectedFiles
from airflow_provider_snowpipe.operators.account_operator import failing_at_once
from airflow_provider_snowpipe.operators.submission import end_of_task, end_of_wait, job_error
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.sensors.files_loaded import SnowpipeFilesLoadedSensor
from airflow_provider_snowpipe.spark.data_source.agreement import RefusedByAnotherError
from airflow_provider_snowpipe.spark.driver import outcome
from airflow_provider_snowpipe.spark.driver.report import RunReport, UnreadableReportError
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.commits import (
    CommitWatch,
    FailureReason,
    PolledStatuses,
    RetryBudget,
    WaitState,
)
from airflow_provider_snowpipe.streaming.errors import SnowpipeError, Worth, advise
from airflow_provider_snowpipe.streaming.progress import CommitTargets

CHANNEL = {"channel": "c", "http_status": 409}
ANSWERS = [
    (SnowpipeError("x"), True),
    (errors.ConfigurationError("x"), False),
    (errors.OffsetTokenError("x"), False),
    (errors.SourcePositionError("x"), False),
    (errors.SourceChangedError("x"), False),
    (errors.ImbalanceError("x"), False),
    (errors.AuditError("x"), False),
    (errors.SourceMissingError("x"), True),
    (errors.PartlyStreamedError("x"), False),
    (errors.SourceUnavailableError("x"), True),
    (errors.RecordUnavailableError("x"), True),
    (errors.ContinuityError("x"), False),
    (errors.EncodingError("x"), False),
    (errors.AuthenticationError("x"), False),
    (errors.RetriesExhaustedError("x"), True),
    (errors.WriterActiveError("x"), True),
    (errors.OffsetTokenMovedError("x", channel="c", expected="1", committed="2"), True),
    (errors.ApiError("x", http_status=400), False),
    (errors.PipeNotFoundError("x", http_status=404), False),
    (errors.PipeFailedOverError("x", http_status=410), True),
    (errors.ChannelError("x", channel="c", http_status=400), False),
    (errors.ChannelFencedError("x", channel="c", http_status=409), False),
    (errors.ChannelInvalidError("x", channel="c", http_status=409), True),
    (errors.UncommittedRowsError("x", channel="c", http_status=409), True),
    (errors.SqlError("x"), True),
    (errors.UnfitRowsError("x"), False),
    (errors.UnknownColumnsError("x"), False),
    (errors.DeadLetterError("x"), True),
    (errors.NothingStagedError("x"), True),
    (errors.StagedFileDiffersError("x"), False),
    (errors.PipeBusyError("x"), True),
    (errors.PipeNotRunningError("x"), True),
    (errors.FilesNotLoadedError("x"), True),
    (errors.WaitRefusedError("x"), False),
    (errors.CommitTimeoutError("x", channel="c", committed=None, target="1"), True),
    (errors.RowsRejectedError("x", channel="c", rejected=1, last_error=None), False),
    (errors.FilesGivenTwiceError("x", files=()), False),
    (errors.FilesRejectedError("x", files=(), rejected=0), False),
    (errors.TokenWentBackError("x"), False),
    (errors.ExecutorLostError("x"), True),
]
SQL = [
    (errors.SqlError("Could not connect to Snowflake backend", errno=250001), True),
    (errors.SqlError("Failed to connect to DB: a. Incorrect user", errno=250001), False),
    (errors.SqlError("the file cannot be moved", errno=253003), True),
    (errors.SqlError("does not exist", errno=2003), False),
]
OF_TASKS = [
    (outcome.TaskFailedError("x", error_type="ContinuityError"), False),
    (outcome.TaskFailedError("x", error_type="ExecutorLostError"), True),
    (outcome.TaskFailedError("x", error_type="NoSuchError"), True),
    (RefusedByAnotherError("x"), False),
    (UnreadableReportError("x"), False),
]


def classes(kind=SnowpipeError):
    yield kind
    for one in kind.__subclasses__():
        yield from classes(one)


def by_the_retry_policy(error):
    return advise(error).worth is Worth.RETRY


def by_an_operator(error):
    with pytest.raises((SnowpipeError, AirflowFailException)) as ended, failing_at_once():
        raise error
    return ended.type is not AirflowFailException


def by_a_submitted_load(error):
    return type(end_of_task(error)) is AirflowException


def by_the_commit_watch(error):
    watch = CommitWatch(CommitTargets.parse({"c": "1"}, "integer"), RetryBudget(max_consecutive_errors=2))
    verdict = watch.see(PolledStatuses(errors={"c": error}), 0.0)
    assert verdict is not None
    return verdict.state is WaitState.WAITING


def by_the_files_watch(error):
    watch = FilesWatch(ExpectedFiles(("a",)), None, Tolerance(), RetryBudget(max_consecutive_errors=2))
    return watch.see(PolledLoads(error=error), 0.0).state is WaitState.WAITING


READERS = [
    by_the_retry_policy,
    by_an_operator,
    by_a_submitted_load,
    by_the_commit_watch,
    by_the_files_watch,
]


def test_every_class_of_error_has_an_expected_answer():
    for module in pkgutil.walk_packages(airflow_provider_snowpipe.__path__, "airflow_provider_snowpipe."):
        if any(
            f".{room}" in module.name
            for room in ("streaming", "bulk", "spark", "routing", "hooks", "operators", "sensors", "triggers")
        ):
            try:
                importlib.import_module(module.name)
            except AirflowOptionalProviderFeatureException:  # of a later Airflow
                continue
            except ModuleNotFoundError as error:
                if not (error.name or "").startswith("airflow."):  # what a later Airflow has
                    raise

    expected = {type(error) for error, _ in (*ANSWERS, *OF_TASKS)}

    assert {kind.__name__ for kind in classes()} - {kind.__name__ for kind in expected} == set()


@pytest.mark.parametrize("reader", READERS, ids=lambda one: one.__name__)
def test_every_reader_gives_the_answer_of_the_class(reader):
    every = [*ANSWERS, *SQL, *OF_TASKS]
    assert [(error, error.retryable) for error, _ in every] == every
    assert [(error, reader(error)) for error, _ in every] == every


def failed_report(kind):
    return RunReport("app", (), 1.0, "x", kind)


def test_an_error_of_the_driver_has_the_answer_of_its_class_by_its_name():
    for error, answer in ANSWERS:
        kind = type(error).__name__
        printed = f"snowpipe error: {kind}: x"
        found = job_error(failed_report(kind), "")

        assert job_error(None, printed) == found
        assert (kind, found[1]) == (kind, not answer)
        assert (advise(RuntimeError(printed)).worth is Worth.RETRY) is answer
    assert job_error(failed_report("NoSuchError"), "") == ("snowpipe error: NoSuchError: x", False)


def test_an_attempt_of_a_spark_task_reports_what_no_attempt_can_fix_and_raises_the_rest():
    for error, answer in [*ANSWERS, *SQL]:
        # A fenced attempt gives its task no end: the one that fenced it may be another of this task.
        reported = not answer and not isinstance(error, errors.ChannelFencedError)
        assert (error, error.spark_may_retry) == (error, not reported)


def test_a_failed_wait_for_commits_has_the_answer_of_its_error():
    for reason, load, wait in [
        (FailureReason.CHANNEL_MISSING, True, False),
        (FailureReason.CHANNEL_INVALID, True, False),
        (FailureReason.ROWS_REJECTED, False, False),
        (FailureReason.BAD_TOKEN, False, False),
        (FailureReason.CONFIGURATION, False, False),
        (FailureReason.REFUSED, False, False),
        (FailureReason.TOO_MANY_ERRORS, True, True),
        (FailureReason.STALLED, True, True),
    ]:
        event = {"status": "failure", "reason": reason.value, "message": "because"}
        sensor = SnowpipeCommitSensor(task_id="s", targets={"c": "1"}, table="T")

        assert reason.error_class.retryable is load
        assert type(end_of_wait(event)) is (AirflowException if load else AirflowFailException)
        with pytest.raises(AirflowException) as ended:
            sensor.execute_complete({}, event)
        assert ended.type is (AirflowException if wait else AirflowFailException)


def test_a_failed_wait_for_files_has_the_answer_of_its_error():
    assert all(issubclass(reason.error_class, SnowpipeError) for reason in (*FailureReason, *FilesFailure))
    for reason in [one for one in FilesFailure if one is not FilesFailure.TIMEOUT]:
        event = {"status": "failure", "reason": reason.value, "message": "because"}
        sensor = SnowpipeFilesLoadedSensor(task_id="s", files=["a"], table="T")
        error = load_failure(reason.value, "because")

        assert type(error) is reason.error_class
        with pytest.raises(AirflowException) as ended:
            sensor.execute_complete({}, event)
        assert (ended.type is AirflowException) is error.retryable
