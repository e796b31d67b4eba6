"""Which files a run gives to a pipe, in which posts, and under which request ids."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_snowpipe.bulk.copy import RunIdentity
from airflow_provider_snowpipe.bulk.file_pipe import FilePipeClient, Submission, SubmittedFile
from airflow_provider_snowpipe.bulk.files_watch import Tolerance, load_failure
from airflow_provider_snowpipe.bulk.staged_files import ExpectedFiles, FileLoad, StageReference
from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.errors import (
    ApiError,
    ConfigurationError,
    FilesNotLoadedError,
    FilesRejectedError,
    RetriesExhaustedError,
    SnowpipeError,
    WaitRefusedError,
)
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.airflow_connections import pem, private_key
from tests.scripted_service import Reply, ScriptedService

__all__ = ["pem", "private_key"]

NOW = dt.datetime(2026, 3, 15, 12, tzinfo=dt.UTC)
PIPE = PipeName("DB", "S", "P")
TAKEN = Reply(body=json.dumps({"requestId": "r", "status": "success"}))


def files(*paths: str) -> list[SubmittedFile]:
    return [SubmittedFile(path) for path in paths]


def load(path: str, status: str, minutes_ago: float = 1) -> FileLoad:
    return FileLoad(path, "STAGE/", status, 1, 2, 1, None, NOW - dt.timedelta(minutes=minutes_ago))


def identity(try_number: int = 1, task: str = "t") -> RunIdentity:
    return RunIdentity(("d", "r", task, "-1"), NOW, try_number)


class TestPlan:
    def test_what_is_loaded_is_not_owed(self) -> None:
        history = [load("a", "LOADED"), load("b", "PARTIALLY_LOADED"), load("c", "LOAD_FAILED")]
        planned = Submission.planned(files("a", "b", "c", "d"), history, NOW)

        assert [one.path for one in planned.owed()] == ["c", "d"]
        assert set(planned.before) == {"a", "b"}

    def test_a_failure_of_before_is_before_the_loads_that_count(self) -> None:
        failed = load("c", "LOAD_FAILED", minutes_ago=3)
        planned = Submission.planned(files("a", "c", "d"), [failed, load("a", "LOADED")], NOW)

        assert failed.loaded_at is not None
        assert planned.since is not None
        assert failed.loaded_at < planned.since < NOW - dt.timedelta(minutes=1), (
            "when the other one was loaded"
        )

    def test_without_one_clocks_may_differ_by_an_hour(self) -> None:
        assert Submission.planned(files("d"), [], NOW).since == NOW - dt.timedelta(hours=1)

    @pytest.mark.parametrize(
        ("minutes_later", "again"),
        [(None, False), (-9, False), (0.5, False), (1, False), (1.5, True)],
        ids=str,
    )
    def test_a_file_is_staged_again_when_it_was_staged_after_its_load(
        self, minutes_later: float | None, again: bool
    ) -> None:
        loaded = load("a", "LOADED", minutes_ago=10)
        assert loaded.loaded_at is not None
        staged = None if minutes_later is None else loaded.loaded_at + dt.timedelta(minutes=minutes_later)
        own = [SubmittedFile("a", None, staged), SubmittedFile("new", None, NOW)]

        assert Submission.planned(own, [loaded], NOW).staged_again() == (("a",) if again else ())
        untimed = [replace(loaded, loaded_at=None)]
        assert Submission.planned(own, untimed, NOW).staged_again() == ()

    def test_the_files_that_are_awaited_are_those_of_the_pipes_own_stage(self) -> None:
        where = ExpectedFiles(stage=StageReference.parse("@DB.S.STAGE"), url="s3://b/")
        planned = Submission.planned(files("a", "b"), [load("a", "LOADED")], NOW, where)

        assert planned.expected() == replace(where, names=("b",))

    def test_files_loaded_in_part_before_are_an_objection_unless_reported(self) -> None:
        planned = Submission.planned(files("b"), [load("b", "PARTIALLY_LOADED")], NOW)

        with pytest.raises(FilesRejectedError, match=r"1 of 1 files .* in part before.*'b' with 1 of 2 rows"):
            planned.require_whole("P", Tolerance())
        planned.require_whole("P", Tolerance(partial="report"))


class TestRequests:
    def test_every_try_derives_the_same_ids_and_other_work_gets_others(self) -> None:
        submission = Submission(tuple(files("a", "b")))

        def ids(work: RunIdentity, of: Submission = submission) -> list[str]:
            return [request_id for _, request_id in of.requests("DB.S.P", work)]

        assert ids(identity(1)) == ids(identity(3))
        assert ids(identity(1)) != ids(identity(1, task="u"))
        assert ids(identity(1)) != ids(identity(1), Submission(tuple(files("a"))))
        assert ids(identity(1)) != [one for _, one in submission.requests("DB.S.OTHER", identity(1))]

    @pytest.mark.parametrize(
        ("count", "posts"), [(0, []), (5_000, [5_000]), (12_001, [5_000, 5_000, 2_001])], ids=str
    )
    def test_a_post_has_five_thousand_files_at_most(self, count: int, posts: list[int]) -> None:
        submission = Submission(tuple(files(*(str(number) for number in range(count)))))
        made = list(submission.requests("P", identity()))

        assert [len(part) for part, _ in made] == posts
        assert len({request_id for _, request_id in made}) == len(posts)

    @pytest.mark.parametrize("path", ["", "ä" * 513], ids=["empty", "1026-bytes"])
    def test_a_path_that_no_pipe_takes_is_refused(self, path: str) -> None:
        with pytest.raises(ConfigurationError, match="takes paths of 1 to 1,024 bytes"):
            SubmittedFile(path)


class TestOutcome:
    def test_of_all_posts_is_summed_up(self) -> None:
        asked: list[str] = []

        class Client:
            pipe = PIPE

            def insert_files(self, part: Sequence[SubmittedFile], request_id: str) -> list[str]:
                asked.append(request_id)
                return [part[0].path]

        work = Submission(tuple(files(*(str(number) for number in range(5_001)))))
        done = work.submit(Client(), identity())  # type: ignore[arg-type]

        assert (done.posts, done.unmatched) == (2, ("0", "5000"))
        assert asked == [request_id for _, request_id in work.requests(str(PIPE), identity())]
        assert done.taken() == [str(number) for number in range(1, 5_000)]

    def test_is_json(self) -> None:
        before = load("a", "LOADED")
        planned = Submission.planned(files("a", "b", "c"), [before], NOW)

        assert replace(planned, unmatched=("c",), posts=1).result("P") == {
            "pipe": "P", "files": ["a", "b", "c"], "submitted": ["b"], "posts": 1, "unmatched": ["c"],
            "loaded_before": {"a": before.result()},
        }  # fmt: skip

    @pytest.mark.parametrize(("count", "text"), [(5, "'3', '4'. The"), (6, "'3', '4' …. The")])
    def test_names_five_files_that_the_pattern_leaves_out(self, count: int, text: str) -> None:
        names = tuple(str(number) for number in range(count))

        with pytest.raises(FilesRejectedError, match=re.escape(text)):
            Submission(tuple(files(*names)), unmatched=names).require_matched("P")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ScriptedService]:
    with ScriptedService(tmp_path) as running:
        yield running


@pytest.fixture
def client(service: ScriptedService, pem: str) -> Iterator[FilePipeClient]:
    made = FilePipeClient(
        service.url,
        KeyPair("ACCOUNT", "USER", pem.encode()),
        PIPE,
        ca_bundle=service.ca_bundle,
        retry=RetryPolicy(budget_seconds=20, initial_seconds=0.01),
    )
    yield made
    made.close()


class TestPosts:
    def test_paths_and_known_sizes_are_sent(self, service: ScriptedService, client: FilePipeClient) -> None:
        service.on("insertFiles", TAKEN)
        Submission((SubmittedFile("a.csv", 7), SubmittedFile("b.csv"))).submit(client, identity())

        (request,) = service.requests("insertFiles")
        assert request.path == "/v1/data/pipes/DB.S.P/insertFiles"
        assert json.loads(request.body) == {"files": [{"path": "a.csv", "size": 7}, {"path": "b.csv"}]}

    def test_a_pause_that_is_asked_for_is_kept_under_the_same_id(
        self, service: ScriptedService, client: FilePipeClient
    ) -> None:
        slow_down = Reply(429, "{}", {"Retry-After": "1"})
        service.on("insertFiles", slow_down, Reply(hang_up=True), TAKEN)
        begun = dt.datetime.now(dt.UTC)
        done = Submission(tuple(files("a"))).submit(client, identity())

        assert dt.datetime.now(dt.UTC) - begun >= dt.timedelta(seconds=1)
        sent = service.requests("insertFiles")
        assert (len(sent), len({request.query["requestId"] for request in sent})) == (3, 1)
        assert done.posts == 1

    def test_what_the_pattern_leaves_out_is_not_waited_for(
        self, service: ScriptedService, client: FilePipeClient
    ) -> None:
        service.on("insertFiles", Reply(body='{"status": "success", "unmatchedPatternFiles": ["b"]}'))
        done = Submission(tuple(files("a", "b"))).submit(client, identity())

        assert done.awaited() == ("a",)
        assert done.result("P")["unmatched"] == ["b"]
        with pytest.raises(FilesRejectedError, match="1 of 2 files"):
            done.require_matched("P")

    def test_more_than_a_post_takes_is_refused(self, client: FilePipeClient) -> None:
        with pytest.raises(ConfigurationError, match="5,000 files at most, not 5,001"):
            client.insert_files([SubmittedFile("a")] * 5_001, "id")

    def test_another_answer_than_success_is_an_error(
        self, service: ScriptedService, client: FilePipeClient
    ) -> None:
        service.on("insertFiles", Reply(body="[]"))
        with pytest.raises(ApiError, match="is no success"):
            client.insert_files(files("a"), "id")


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("load_failed", FilesRejectedError),
        ("partially_loaded", FilesRejectedError),
        ("timeout", FilesNotLoadedError),
        ("configuration", ConfigurationError),
        ("too_many_errors", RetriesExhaustedError),
        ("refused", WaitRefusedError),
    ],
)
def test_a_wait_that_ended_badly_has_an_error_for_its_reason(reason: str, error: type[SnowpipeError]) -> None:
    assert type(load_failure(reason, "words")) is error
