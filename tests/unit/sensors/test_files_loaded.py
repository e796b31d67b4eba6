"""What the sensor of loaded files refuses before it waits."""

import json
import time
from datetime import timedelta

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowException, AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.bulk.load_history import PolledLoads
from airflow_provider_snowpipe.bulk.staged_files import COPY_HISTORY, FileLoad
from airflow_provider_snowpipe.sensors.files_loaded import SnowpipeFilesLoadedSensor
from airflow_provider_snowpipe.streaming.commits import WaitState
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.triggers.files_loaded import SnowpipeFilesLoadedTrigger
from tests.fake_account import BEFORE, MISSING, FakeAccount, StatementError
from tests.local_connection import TaskInstance
from tests.refusals import refused
from tests.unit.operators.account_in_task import install


def make(**options):
    return SnowpipeFilesLoadedSensor(**{"task_id": "wait", "files": ["a"], "table": "T", **options})


def test_wrong_arguments_are_refused_when_the_dag_is_parsed():
    started = {"deferrable": True, "start_from_trigger": True}
    for options, text in [
        ({"files": None}, "files is None and prefix is None: give one of the two"),
        ({"count": 3}, "count is 3 without prefix"),
        ({"files": None, "prefix": "x"}, "give stage=…, where the files are listed, or count=…"),
        ({"table": None}, "no table and no pipe"),
        ({"on_partial": "skip"}, "on_partial is 'skip': it must be one of"),
        ({"start_from_trigger": True}, "start_from_trigger is True: it needs deferrable=True"),
        ({**started, "stage": "@s"}, "stage is '@s' with start_from_trigger=True, where nothing is listed"),
        ({**started, "files": lambda _context, _env: ["a"]}, "function, which does not reach the triggerer"),
    ]:
        refused(ConfigurationError, lambda given: make(**{"deferrable": False, **given}), [options], text)


@pytest.mark.parametrize("files", [[], "[]"])
@pytest.mark.parametrize("deferrable", [False, True])
def test_no_file_is_nothing_to_wait_for(files, deferrable):
    sensor = make(files=files, deferrable=deferrable, snowflake_conn_id="is_never_asked")
    assert sensor.execute({"ti": TaskInstance()}) == {}


def test_deferred_wait_ends_the_timeout_after_the_first_poll(monkeypatch):
    install(FakeAccount(), monkeypatch)
    before = time.time()
    with pytest.raises(TaskDeferred) as deferred:
        make(deferrable=True, timeout=1_000).execute({"ti": TaskInstance()})
    deadline = deferred.value.trigger.deadline
    assert before + 1_000 <= deadline <= time.time() + 1_000
    assert deferred.value.timeout == timedelta(seconds=1_120)  # the trigger's limit is before Airflow's
    started = make(deferrable=True, start_from_trigger=True, timeout=300).start_trigger_args
    assert started.timeout == timedelta(seconds=420)


@pytest.mark.parametrize("name", ["files", "prefix"])
def test_a_choice_that_is_rendered_to_none_is_not_the_whole_stage(monkeypatch, name):
    account = FakeAccount()
    install(account, monkeypatch)
    account.put("a", "a1")
    account.copy("a")
    with DAG("d", schedule=None, render_template_as_native_obj=True):
        sensor = make(stage="@S", **{"files": None, name: "{{ nothing }}"})
    sensor.render_template_fields({"nothing": None})
    with pytest.raises(AirflowFailException, match=r"files.*prefix"):
        sensor.execute({"ti": TaskInstance()})


class TestStage:
    """A load of a file of another stage does not end the wait, though it has the same path and table."""

    @pytest.fixture
    def account(self, monkeypatch):
        account = FakeAccount()
        install(account, monkeypatch)
        account.put("in/a", "a1")
        account.stages["OTHER"] = {"in/a": b"other\n"}
        account._copy("COPY INTO T FROM @OTHER ON_ERROR = CONTINUE")
        return account

    @pytest.mark.parametrize("url", [None, "s3://bucket/"], ids=["internal", "external"])
    @pytest.mark.parametrize(
        "given", [{"files": ["a"]}, {"files": None, "prefix": "a"}], ids=["files", "prefix"]
    )
    def test_the_wait_goes_on_here_and_in_the_triggerer(self, account, given, url):
        if url is not None:
            account.stage_urls["S"] = url
        sensor = make(stage="@S/in", deferrable=True, poke_interval=0.01, **given)
        with pytest.raises(TaskDeferred) as deferred:
            sensor.execute({"ti": TaskInstance()})
        _, arguments = deferred.value.trigger.serialize()
        trigger = SnowpipeFilesLoadedTrigger(**json.loads(json.dumps(arguments)))
        account._copy("COPY INTO T FROM @S ON_ERROR = CONTINUE")
        if url is not None:
            account.history[-1]["stage_location"] = url
        other, own = (FileLoad.read(account.history[at], COPY_HISTORY) for at in (0, -1))
        watch = trigger._watch()

        assert watch.see(PolledLoads([other]), 0.0).state is WaitState.WAITING
        assert watch.see(PolledLoads([own]), 1.0).state is WaitState.COMPLETE

    def test_the_load_by_a_pipe_that_was_over_the_other_stage_then_does_not_count(self, account):
        account.history[0].update(pipe_catalog_name="LOCAL", pipe_schema_name="PUBLIC", pipe_name="P")
        sensor = make(stage="@S/in", pipe="P")
        assert not sensor.poke({"ti": TaskInstance()}).is_done
        account._copy("COPY INTO T FROM '@S/in' ON_ERROR = CONTINUE", "LOCAL.PUBLIC.P")
        assert sensor.poke({"ti": TaskInstance()}).is_done

    def test_another_error_about_the_stage_ends_the_poll(self, account):
        account.fault("DESCRIBE", BEFORE, StatementError(604, "the statement was cancelled"))
        with pytest.raises(AirflowException, match="cancelled"):
            make(stage="@S/in").poke({"ti": TaskInstance()})

    def test_counts_where_the_role_may_not_ask_for_the_stage(self, account):
        account.fault("DESCRIBE", BEFORE, StatementError(MISSING, "does not exist or not authorized"))
        assert make(stage="@S/in").poke({"ti": TaskInstance()}).is_done
