"""One answer to "can a retry help?": the class of the error has it, and whoever ends a task reads it."""

import importlib
import pkgutil

import pytest
from airflow.providers.common.compat import sdk

import airflow_provider_snowpipe
from airflow_provider_snowpipe.bulk.files_watch import FilesFailure, FilesWatch, Tolerance, load_failure
from airflow_provider_snowpipe.bulk.ledger_entry import GivenUpError
from airflow_provider_snowpipe.bulk.load_history import PolledLoads
from airflow_provider_snowpipe.bulk.staged_files import ExpectedFiles
from airflow_provider_snowpipe.operators.account_operator import failing_at_once
from airflow_provider_snowpipe.operators.submission import end_of_task, end_of_wait, job_error
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.sensors.files_loaded import SnowpipeFilesLoadedSensor
from airflow_provider_snowpipe.spark.data_source.agreement import RefusedByAnotherError
from airflow_provider_snowpipe.spark.driver import outcome
from airflow_provider_snowpipe.spark.driver.report import RunReport, UnreadableReportError
from airflow_provider_snowpipe.streaming import commits, errors
from airflow_provider_snowpipe.streaming.errors import SnowpipeError, Worth, advise
from airflow_provider_snowpipe.streaming.progress import CommitTargets

RETRYABLE = """
SnowpipeError SourceMissingError SourceUnavailableError RecordUnavailableError RetriesExhaustedError
WriterActiveError OffsetTokenMovedError PipeFailedOverError ChannelInvalidError UncommittedRowsError SqlError
DeadLetterError NothingStagedError PipeBusyError PipeNotRunningError FilesNotLoadedError CommitTimeoutError
ExecutorLostError
"""
FINAL = """
ConfigurationError OffsetTokenError SourcePositionError SourceChangedError ImbalanceError AuditError
PartlyStreamedError ContinuityError EncodingError AuthenticationError ApiError PipeNotFoundError ChannelError
ChannelFencedError UnfitRowsError UnknownColumnsError StagedFileDiffersError WaitRefusedError
RowsRejectedError FilesGivenTwiceError FilesRejectedError TokenWentBackError
"""
GIVEN = {
    "http_status": 409,
    "channel": "c",
    "expected": "1",
    "committed": "2",
    "target": "3",
    "rejected": 1,
    "last_error": None,
    "files": (),
}
"""What errors take beside their text."""


def made(kind):
    """An error of a class, with what it takes and cannot do without."""
    code = kind.__init__.__code__ if hasattr(kind.__init__, "__code__") else None
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code else ()
    given = {name: GIVEN[name] for name in names if name in GIVEN}
    return kind("x", **given)


ANSWERS = [
    *((made(getattr(errors, name)), True) for name in RETRYABLE.split()),
    *((made(getattr(errors, name)), False) for name in FINAL.split()),
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
    (GivenUpError("x"), True),
    (UnreadableReportError("x"), False),
]


def classes(kind=SnowpipeError):
    yield kind
    for one in kind.__subclasses__():
        yield from classes(one)


def by_the_retry_policy(error):
    return advise(error).worth is Worth.RETRY


def by_an_operator(error):
    with pytest.raises((SnowpipeError, sdk.AirflowFailException)) as ended, failing_at_once():
        raise error
    return ended.type is not sdk.AirflowFailException


def by_a_submitted_load(error):
    return type(end_of_task(error)) is sdk.AirflowException


def by_the_commit_watch(error):
    budget = commits.RetryBudget(max_consecutive_errors=2)
    watch = commits.CommitWatch(CommitTargets.parse({"c": "1"}, "integer"), budget)
    verdict = watch.see(commits.PolledStatuses(errors={"c": error}), 0.0)
    return verdict.state is commits.WaitState.WAITING


def by_the_files_watch(error):
    budget = commits.RetryBudget(max_consecutive_errors=2)
    watch = FilesWatch(ExpectedFiles(("a",)), None, Tolerance(), budget)
    return watch.see(PolledLoads(error=error), 0.0).state is commits.WaitState.WAITING


READERS = [by_the_retry_policy, by_an_operator, by_a_submitted_load, by_the_commit_watch, by_the_files_watch]


def test_every_class_of_error_has_an_expected_answer():
    for module in pkgutil.walk_packages(airflow_provider_snowpipe.__path__, "airflow_provider_snowpipe."):
        if not any(f".{room}" in module.name for room in ("plugins", "cli", "queues", "policies")):
            try:
                importlib.import_module(module.name)
            except sdk.AirflowOptionalProviderFeatureException:  # of a later Airflow
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


@pytest.mark.parametrize("reason", commits.FailureReason)
def test_a_failed_wait_for_commits_has_the_answer_of_its_error(reason):
    only_waits = {commits.FailureReason.TOO_MANY_ERRORS, commits.FailureReason.STALLED}
    lost = {commits.FailureReason.CHANNEL_MISSING, commits.FailureReason.CHANNEL_INVALID}
    load = reason in lost | only_waits
    event = {"status": "failure", "reason": reason.value, "message": "because"}
    sensor = SnowpipeCommitSensor(task_id="s", targets={"c": "1"}, table="T")
    assert reason.error_class.retryable is load
    assert type(end_of_wait(event)) is (sdk.AirflowException if load else sdk.AirflowFailException)
    with pytest.raises(sdk.AirflowException) as ended:
        sensor.execute_complete({}, event)
    assert ended.type is (sdk.AirflowException if reason in only_waits else sdk.AirflowFailException)


def test_a_failed_wait_for_files_has_the_answer_of_its_error():
    assert all(
        issubclass(reason.error_class, SnowpipeError) for reason in (*commits.FailureReason, *FilesFailure)
    )
    timeout = {"status": "failure", "reason": FilesFailure.TIMEOUT.value, "message": "because"}
    with pytest.raises(sdk.AirflowSensorTimeout, match=r"^timeout: because$"):
        SnowpipeFilesLoadedSensor(task_id="s", files=["a"], table="T").execute_complete({}, timeout)
    for reason in [one for one in FilesFailure if one is not FilesFailure.TIMEOUT]:
        event = {"status": "failure", "reason": reason.value, "message": "because"}
        sensor = SnowpipeFilesLoadedSensor(task_id="s", files=["a"], table="T")
        error = load_failure(reason.value, "because")

        assert type(error) is reason.error_class
        with pytest.raises(sdk.AirflowException) as ended:
            sensor.execute_complete({}, event)
        assert (ended.type is sdk.AirflowException) is error.retryable
