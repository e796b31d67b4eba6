"""Which files a run gives to a pipe, in which posts, and under which request ids."""

import datetime as dt
import json
from dataclasses import replace

import pytest

from airflow_provider_snowpipe.bulk.copy import RunIdentity
from airflow_provider_snowpipe.bulk.file_pipe import FilePipeClient, Submission, SubmittedFile
from airflow_provider_snowpipe.bulk.files_watch import Tolerance
from airflow_provider_snowpipe.bulk.staged_files import ExpectedFiles, FileLoad, StageReference
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.refusals import refused
from tests.scripted_service import Reply

NOW = dt.datetime(2026, 3, 15, 12, tzinfo=dt.UTC)
PIPE = PipeName("DB", "S", "P")
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
        with pytest.raises(errors.FilesRejectedError, match=r" in part before.*'b' with 1 of 2 rows"):
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
            pipe = PIPE

            def insert_files(self, part, request_id):
                asked.append(request_id)
                return [part[0].path]

        work = Submission(tuple(files(*(str(number) for number in range(5_001)))))
        done = work.submit(Client(), identity())

        assert (done.posts, done.unmatched) == (2, ("0", "5000"))
        assert asked == [request_id for _, request_id in work.requests(str(PIPE), identity())]
        assert done.taken() == [str(number) for number in range(1, 5_000)]
        before = load("a", "LOADED")
        result = Submission.planned(files("a", "b"), [before], NOW).result("P")
        assert (result["submitted"], result["loaded_before"]) == (["b"], {"a": before.result()})


@pytest.fixture
def client(service, pem):
    key, retry = (
        KeyPair("ACCOUNT", "USER", pem.encode()),
        RetryPolicy(budget_seconds=20, initial_seconds=0.01),
    )
    made = FilePipeClient(service.url, key, PIPE, ca_bundle=service.ca_bundle, retry=retry)
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
        with pytest.raises(errors.ApiError, match="is no success"):
            client.insert_files(files("a"), "id")
        with pytest.raises(errors.ConfigurationError, match="5,000 files at most, not 5,001"):
            client.insert_files([SubmittedFile("a")] * 5_001, "id")
