"""File pipes: their SQL, their state, what they load into what, and which files a run gives to one."""

import datetime as dt
import json
from dataclasses import replace
from functools import partial

import pytest

from airflow_provider_snowpipe.bulk import file_pipe_admin as pipes
from airflow_provider_snowpipe.bulk.copy import CopyInto, CopyOptions, RunIdentity
from airflow_provider_snowpipe.bulk.file_pipe import FilePipeClient, Submission, SubmittedFile
from airflow_provider_snowpipe.bulk.files_watch import Tolerance
from airflow_provider_snowpipe.bulk.staged_files import ExpectedFiles, FileLoad, StageReference
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SqlError
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.refusals import refused
from tests.scripted_service import Reply

PIPE = PipeName("DB", "S", 'a "pipe"')
QUOTED = '"DB"."S"."a ""pipe"""'
DAY = dt.timedelta(days=1)


def copy(location="@S/in", **options):
    return CopyInto(("DB", "S", "T"), location, CopyOptions(**options))


class TestDefinition:
    def test_is_its_options_and_its_copy(self):
        names = {"integration": "it's", "aws_sns_topic": "arn:topic", "error_integration": "ERRORS"}
        definition = pipes.PipeDefinition(copy(on_error="SKIP_FILE"), auto_ingest=True, comment="c", **names)
        assert definition.create(PIPE) == (
            f"CREATE PIPE {QUOTED} AUTO_INGEST = TRUE ERROR_INTEGRATION = ERRORS AWS_SNS_TOPIC = 'arn:topic' "
            "INTEGRATION = 'it''s' COMMENT = 'c' AS COPY INTO \"DB\".\"S\".\"T\" FROM '@S/in' "
            "ON_ERROR = SKIP_FILE"
        )
        assert definition.create(PIPE, replace=True).startswith("CREATE OR REPLACE PIPE ")

    def test_that_no_pipe_can_have_is_refused_by_name(self):
        options = {"on_error": "ABORT_STATEMENT", "size_limit": 1, "purge": True, "force": True}
        for option, value in options.items():
            with pytest.raises(ConfigurationError, match=f"options has {option}="):
                pipes.PipeDefinition(copy(**{option: value}))
        refused(ConfigurationError, pipes.PipeDefinition, [copy("@~/in")], "'@~'")
        with pytest.raises(ConfigurationError, match="auto_ingest"):
            pipes.PipeDefinition(copy(), integration="EVENTS")


class TestChanges:
    def admin(self, state="RUNNING"):
        def run(statement, values):
            if statement == pipes.PIPE_STATUS:
                return [{"status": json.dumps({"executionState": state})}]
            assert statement.startswith("DESCRIBE PIPE")
            return [{"definition": "COPY INTO T FROM @S", "notification_channel": None}]

        return pipes.FilePipeAdmin(run, PIPE, is_rehearsal=True)

    def test_name_the_pipe_and_are_one_statement_each(self):
        paused = f"ALTER PIPE {QUOTED} SET PIPE_EXECUTION_PAUSED ="
        assert self.admin().pause() == pipes.PipeChange(True, (f"{paused} TRUE",))
        assert self.admin("PAUSED").resume() == pipes.PipeChange(True, (f"{paused} FALSE",))
        assert self.admin().drop() == pipes.PipeChange(True, (f"DROP PIPE IF EXISTS {QUOTED}",))
        assert self.admin().alter(comment="", error_integration="my errors").statements == (
            f"ALTER PIPE {QUOTED} UNSET COMMENT",
            f'ALTER PIPE {QUOTED} SET ERROR_INTEGRATION = "my errors"',
        )

    def test_a_refresh_is_narrowed_by_prefix_and_timestamp_and_reaches_back_seven_days(self):
        def refreshed(since, prefix=None):
            change = self.admin().refresh(prefix=prefix, modified_after=since, on_nothing="fail")
            (statement,) = change.statements
            return statement

        now = dt.datetime.now(dt.UTC)
        since = (now - DAY).replace(microsecond=7_000)
        assert refreshed(since, "it's/") == (
            f"ALTER PIPE {QUOTED} REFRESH PREFIX = 'it''s/' "
            f"MODIFIED_AFTER = '{since:%Y-%m-%dT%H:%M:%S}.007+00:00'"
        )
        assert "MODIFIED_AFTER" in refreshed(now - 6.99 * DAY)
        refused(ConfigurationError, refreshed, [now - 7.01 * DAY], "7 days ago", "COPY INTO")


class TestStatus:
    def status(self, **fields):
        return pipes.PipeStatus.read(json.dumps({"executionState": "RUNNING", **fields}))

    def test_of_a_pipe_that_has_work_to_do_reports_what_waits(self):
        waits = {"pendingFileCount": 3, "oldestPendingFilePath": "a", "oldestFileTimestamp": "2026-03-15T11Z"}
        last = {"lastIngestedFilePath": "b", "lastIngestedTimestamp": "2026-03-15T10:00:00Z"}
        found = self.status(**waits, **last, notificationChannelName="arn")
        at = dt.datetime(2026, 3, 15, 11, tzinfo=dt.UTC)
        values = (3, "a", at, "b", at - dt.timedelta(hours=1), "arn")
        assert found == pipes.PipeStatus("RUNNING", *values, raw=found.raw)
        assert str(found) == "RUNNING, 3 files wait, the oldest since 2026-03-15T11:00:00+00:00"
        assert found.result()["last_ingested_at"] == "2026-03-15T10:00:00+00:00"
        assert self.status(lastIngestedTimestamp="yesterday").last_ingested_at is None

    def test_is_running_paused_or_neither_and_shows_an_error_or_a_fault_in_one_line(self):
        states = {"RUNNING": (1, 0), "PAUSED": (0, 1), "READ_ONLY": (0, 0), "STOPPED_MISSING_TABLE": (0, 0)}
        for state, expected in states.items():
            found = self.status(executionState=state)
            assert (found.is_running, found.is_paused) == expected
        assert str(self.status(error="no\n table")).endswith("error: no table")
        assert self.status(fault="broken").error == "broken"

    def test_that_is_none_is_refused(self):
        refused(SqlError, pipes.PipeStatus.read, ["", "[]", "{}", None, "no JSON"], "not a state of a pipe")


class TestTarget:
    PIPE = PipeName("DB", "S", "P")

    def test_table_and_location_are_read_from_the_statements_that_people_write(self):
        transformed = "(SELECT $1:a::INT, 'from @x' FROM @o.s.st/p (FILE_FORMAT => 'f') r)"
        for statement, table, stage in [
            ("copy into t from @st", ("DB", "S", "T"), '@"DB"."S".st'),
            ("COPY INTO x.t\n  FROM @st/in/ny/ FORCE = TRUE", ("DB", "X", "T"), '@"DB"."S".st/in/ny'),
            ('COPY INTO "d"."s"."t" FROM @"d"."s"."st"', ("d", "s", "t"), '@"d"."s"."st"'),
            ("COPY INTO t (a, \"b\") FROM '@%t/it''s here'", ("DB", "S", "T"), '@"DB"."S".%t/it\'s here'),
            (f"COPY INTO o.s.t FROM {transformed}", ("O", "S", "T"), "@o.s.st/p"),
        ]:
            target = pipes.PipeTarget.of(self.PIPE, statement)
            assert (target.table, str(target.stage)) == (table, stage)
        wrong = ["", "COPY INTO t", "SELECT 1", "COPY INTO t FROM (SELECT 1)"]
        refused(ConfigurationError, partial(pipes.PipeTarget.of, self.PIPE), wrong, "DB.S.P", "MONITOR")

    def test_a_path_below_the_location_is_a_prefix_and_another_location_is_refused(self):
        def below(given, location="@st/in"):
            target = pipes.PipeTarget.of(self.PIPE, f"COPY INTO t FROM {location}")
            return target.below(StageReference.parse(given), self.PIPE)

        assert below("@st", "@st") == below('@"ST"/in') == ""
        assert (below("@st/in/ny", "@st"), below("@DB.S.ST/in/ny")) == ("in/ny/", "ny/")
        assert below("@%T/x", "@%t") == "x/"
        elsewhere = ["@st", "@st/inner", "@other/in", "@x.st/in", '@"st"/in', "@%st/in"]
        refused(ConfigurationError, below, elsewhere, 'loads from @"DB"."S".st/in, and the files are at')

    def test_the_pipes_that_show_pipes_lists_are_read(self, local_service, conn_id):
        for statement in ("TABLE t (a VARCHAR)", "STAGE s", "SCHEMA other"):
            local_service.sql(f"CREATE {statement}")
        copy = CopyInto(("LOCAL", "PUBLIC", "T"), '@"LOCAL"."PUBLIC".S/a--b/').statement()
        local_service.sql(f"CREATE PIPE other.p AS {copy} PATTERN = '.*[.]csv'")
        shown = SnowpipeBulkHook(conn_id, table="T").run_sql('SHOW PIPES IN DATABASE "LOCAL"')
        (pipe,) = [pipes.ListedPipe.read(row) for row in shown]

        assert pipe.name == PipeName("LOCAL", "OTHER", "P")
        assert pipe.target.table == ("LOCAL", "PUBLIC", "T")
        assert pipe.created is not None
        stage = StageReference.parse('@"LOCAL"."PUBLIC".S')
        assert [pipe.takes(path, stage) for path in ("a--b/1.csv", "a/1.csv", "a--b/1.json")] == [1, 0, 0]
        streaming = {"kind": "STREAMING", "name": "T-STREAMING", "definition": "COPY INTO T"}
        assert pipes.ListedPipe.read(streaming) is None


NOW = dt.datetime(2026, 3, 15, 12, tzinfo=dt.UTC)
PLAIN = PipeName("DB", "S", "P")
TAKEN = Reply(body=json.dumps({"requestId": "r", "status": "success"}))


def files(*paths):
    return [SubmittedFile(path) for path in paths]


def load(path, status, minutes_ago=1):
    return FileLoad(path, "STAGE/", status, 1, 2, 1, None, NOW - dt.timedelta(minutes=minutes_ago))


def identity(try_number=1, task="t"):
    return RunIdentity(("d", "r", task, "-1"), NOW, try_number)


class TestPlan:
    def test_what_is_loaded_is_not_owed_and_the_rest_is_awaited_in_the_pipes_own_stage(self):
        history = [load("a", "LOADED"), load("b", "PARTIALLY_LOADED"), load("c", "LOAD_FAILED")]
        where = ExpectedFiles(stage=StageReference.parse("@DB.S.STAGE"), url="s3://b/")
        planned = Submission.planned(files("a", "b", "c", "d"), history, NOW, where)
        assert [one.path for one in planned.owed()] == ["c", "d"]
        assert set(planned.before) == {"a", "b"}
        assert planned.expected() == replace(where, names=("c", "d"))
        with pytest.raises(errors.FilesRejectedError, match=r"part.*'b'.*1 of 2"):
            planned.require_whole("P", Tolerance())
        planned.require_whole("P", Tolerance(partial="report"))

    def test_loads_count_from_behind_a_failure_of_before_and_else_clocks_may_differ_by_an_hour(self):
        failed = load("c", "LOAD_FAILED", minutes_ago=3)
        since = Submission.planned(files("a", "c", "d"), [failed, load("a", "LOADED")], NOW).since
        assert failed.loaded_at < since < NOW - dt.timedelta(minutes=1), "when the other one was loaded"
        assert Submission.planned(files("d"), [], NOW).since == NOW - dt.timedelta(hours=1)

    def test_a_file_is_staged_again_when_it_was_staged_after_its_load(self):
        loaded = load("a", "LOADED", minutes_ago=10)
        for minutes, again in {None: (), -9: (), 0.5: (), 1: (), 1.5: ("a",)}.items():
            staged = None if minutes is None else loaded.loaded_at + dt.timedelta(minutes=minutes)
            own = [SubmittedFile("a", None, staged), SubmittedFile("new", None, NOW)]
            assert Submission.planned(own, [loaded], NOW).staged_again() == again
            untimed = [replace(loaded, loaded_at=None)]
            assert Submission.planned(own, untimed, NOW).staged_again() == ()


class TestRequests:
    def test_every_try_derives_the_same_ids_and_other_work_gets_others(self):
        submission = Submission(tuple(files("a", "b")))

        def ids(work, of=submission):
            return [request_id for _, request_id in of.requests("DB.S.P", work)]

        assert ids(identity(1)) == ids(identity(3))
        assert ids(identity(1)) != ids(identity(1, task="u"))
        assert ids(identity(1)) != ids(identity(1), Submission(tuple(files("a"))))
        assert ids(identity(1)) != [one for _, one in submission.requests("DB.S.OTHER", identity(1))]

    def test_a_post_has_five_thousand_files_at_most_and_paths_that_a_pipe_takes(self):
        for count, posts in {0: [], 5_000: [5_000], 12_001: [5_000, 5_000, 2_001]}.items():
            made = list(Submission(tuple(files(*map(str, range(count))))).requests("P", identity()))
            assert [len(part) for part, _ in made] == posts
            assert len({request_id for _, request_id in made}) == len(posts)
        refused(errors.ConfigurationError, SubmittedFile, ["", "ä" * 513], "1 to 1,024 bytes")


class TestOutcome:
    def test_of_all_posts_is_summed_up(self):
        asked = []

        class Client:
            pipe = PLAIN

            def insert_files(self, part, request_id):
                asked.append(request_id)
                return [part[0].path]

        work = Submission(tuple(files(*(str(number) for number in range(5_001)))))
        done = work.submit(Client(), identity())

        assert (done.posts, done.unmatched) == (2, ("0", "5000"))
        assert asked == [request_id for _, request_id in work.requests(str(PLAIN), identity())]
        assert done.taken() == [str(number) for number in range(1, 5_000)]
        before = load("a", "LOADED")
        result = Submission.planned(files("a", "b"), [before], NOW).result("P")
        assert (result["submitted"], result["loaded_before"]) == (["b"], {"a": before.result()})


@pytest.fixture
def client(service, pem):
    key, retry = KeyPair("A", "USER", pem.encode()), RetryPolicy(budget_seconds=20, initial_seconds=0.01)
    made = FilePipeClient(service.url, key, PLAIN, ca_bundle=service.ca_bundle, retry=retry)
    yield made
    made.close()


class TestPosts:
    def test_paths_and_sizes_are_sent_under_one_id_after_the_pause_that_is_asked_for(self, service, client):
        slow_down = Reply(429, "{}", {"Retry-After": "1"})
        service.on("insertFiles", slow_down, Reply(hang_up=True), TAKEN)
        begun = dt.datetime.now(dt.UTC)
        done = Submission((SubmittedFile("a.csv", 7), SubmittedFile("b.csv"))).submit(client, identity())
        assert dt.datetime.now(dt.UTC) - begun >= dt.timedelta(seconds=1)
        sent = service.requests("insertFiles")
        assert (len(sent), len({request.query["requestId"] for request in sent}), done.posts) == (3, 1, 1)
        assert sent[-1].path == "/v1/data/pipes/DB.S.P/insertFiles"
        assert json.loads(sent[-1].body) == {"files": [{"path": "a.csv", "size": 7}, {"path": "b.csv"}]}

    def test_what_the_pattern_leaves_out_is_not_waited_for(self, service, client):
        service.on("insertFiles", Reply(body='{"status": "success", "unmatchedPatternFiles": ["b"]}'))
        done = Submission(tuple(files("a", "b"))).submit(client, identity())
        assert done.awaited() == ("a",)
        with pytest.raises(errors.FilesRejectedError, match="1 of 2 files"):
            done.require_matched("P")

    def test_another_answer_than_success_is_an_error(self, service, client):
        service.on("insertFiles", Reply(body="[]"))
        with pytest.raises(errors.ApiError, match="success"):
            client.insert_files(files("a"), "id")
        with pytest.raises(errors.ConfigurationError, match=r"5,000.*5,001"):
            client.insert_files([SubmittedFile("a")] * 5_001, "id")
