"""The job on real Spark against a real local service: submitted where that matters, else in process."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from airflow_provider_snowpipe.spark.driver import Run
from airflow_provider_snowpipe.spark.files.source import FileSource
from airflow_provider_snowpipe.spark.files.spec import FileSourceSpec
from airflow_provider_snowpipe.spark.sink import PartitionWork, SinkSettings, load_partition
from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import LexicographicOffset
from tests.spark_job import SparkJob, ids_in, new_table, numbered_name, write_rows

pytestmark = pytest.mark.spark

MISSING = "ERR_CHANNEL_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"


@pytest.fixture
def job(local_service, tmp_path, shared_spark):
    """A job with its own table and an empty growing source."""
    (tmp_path / "source").mkdir()
    return SparkJob(
        service=local_service,
        directory=tmp_path / "runs",
        table=new_table(local_service, numbered_name("JOB")),
        source=FileSourceSpec(path=str(tmp_path / "source"), growing=True),
        spark=shared_spark,
    )


@pytest.fixture
def source(tmp_path):
    return tmp_path / "source"


def _fill(source):
    """900 rows: three groups of three files of one hundred lines."""
    number = 0
    for group in ("ewr", "jfk", "lga"):
        for file in ("01.ndjson", "02.ndjson", "03.ndjson"):
            write_rows(source / group / file, range(number, number + 100))
            number += 100
    return ("ewr", "jfk", "lga")


def _open_and_commit(job, partition, token, body=b'{"ID": -1}\n'):
    """Put a channel where a test wants it: one row, committed under a token of the test's choice."""
    with job.service.client(job.table) as client:
        client.pipe_info()
        with Channel.open(client, job.channel(partition), LexicographicOffset) as channel:
            position = LexicographicOffset(token)
            channel.append(body, position, position, rows=1)
            channel.wait_for_commit(position, timeout=30)


def _refused(finished, kind):
    """The one line that a failed run prints."""
    assert finished.code == 1, finished.err[-3000:]
    (line,) = finished.error_lines
    assert line.startswith(f"snowpipe error: {kind}: "), line
    assert "Traceback" not in finished.out + finished.err
    return line


def test_submitted_job_loads_once_shows_no_secret_and_later_runs_load_only_what_was_added(job, source):
    groups = _fill(source)
    secret = "".join(Path(job.service.key_file).read_text().split("\n")[1:3])[:80]

    with job.start() as running:
        first = running.wait()

    assert first.code == 0, first.err[-3000:]
    assert ids_in(job.service, job.table) == list(range(900))
    assert job.committed(*groups) == dict.fromkeys(groups, "03.ndjson:100")
    assert [(c.partition, c.from_token, c.to_token, c.rows, c.committed) for c in first.report.channels] == [
        (group, None, "03.ndjson:100", 300, True) for group in groups
    ]
    assert first.report.bytes == sum(path.stat().st_size for path in source.rglob("*.ndjson"))
    assert f"snowpipe loaded channel={job.channel('ewr')} from=NULL to=03.ndjson:100 rows=300" in first.out

    left = {path.name: path.read_text() for path in (job.directory / "run1").iterdir() if path.is_file()}
    assert "credentials.json" not in left
    assert not [name for name, text in left.items() if secret in text or "BEGIN" in text]
    assert not [name for name, text in left.items() if "eyJ" in text]
    assert "private_key" not in left["plan.json"]

    second = job.run()

    assert second.code == 0, second.err[-3000:]
    assert [(c.from_token, c.target_token, c.rows, c.bytes) for c in second.report.channels] == [
        ("03.ndjson:100", "03.ndjson:100", 0, 0)
    ] * 3
    assert ids_in(job.service, job.table) == list(range(900))

    write_rows(source / "ewr" / "03.ndjson", range(900, 910))
    write_rows(source / "jfk" / "04.ndjson", range(910, 915))
    write_rows(source / "jfk" / "04.ndjson", [915], end="")
    third = job.run()

    assert third.code == 0, third.err[-3000:]
    assert [(c.to_token, c.rows) for c in third.report.channels] == [
        ("03.ndjson:110", 10),
        ("04.ndjson:5", 5),
        ("03.ndjson:100", 0),
    ]
    assert ids_in(job.service, job.table) == list(range(915))


def test_resume_in_the_middle_of_a_file_reads_on_from_the_next_line(job, source):
    _fill(source)
    _open_and_commit(job, "jfk", "02.ndjson:42")

    finished = job.run()

    assert finished.code == 0, finished.err[-3000:]
    wanted = {-1, *range(900)} - set(range(300, 442))
    assert ids_in(job.service, job.table) == sorted(wanted)
    by_partition = {c.partition: c for c in finished.report.channels}
    assert (by_partition["jfk"].from_token, by_partition["jfk"].rows) == ("02.ndjson:42", 158)


def test_last_line_of_a_finished_source_needs_no_line_ending(job, source):
    write_rows(source / "a" / "1.ndjson", range(3), end="")
    finished = job.run(source=FileSourceSpec(path=str(source)))

    assert finished.code == 0, finished.err[-3000:]
    assert ids_in(job.service, job.table) == [0, 1, 2]
    assert job.committed("a") == {"a": "1.ndjson:3"}


def test_blank_lines_and_windows_line_endings_keep_their_numbers(job, source):
    (source / "a").mkdir()
    (source / "a" / "1.ndjson").write_bytes(b'\r\n{"ID": 1}\r\n\r\n{"ID": 2}\r\n\r\n')
    (source / "a" / "2.ndjson").write_bytes(b"\n\n")
    (source / "a" / "3.ndjson").write_bytes(b'\n{"ID": 3}\n')

    finished = job.run()

    assert finished.code == 0, finished.err[-3000:]
    assert ids_in(job.service, job.table) == [1, 2, 3]
    assert job.committed("a") == {"a": "3.ndjson:2"}
    assert finished.report.rows == 3


def test_lines_of_text_go_to_one_column(job, source, local_service):
    local_service.sql(f"CREATE TABLE LOCAL.PUBLIC.{job.table}_TEXT (MESSAGE VARCHAR)")
    lines = ['GET /a "quoted" \\ back', "é — 日本", "\ttabbed "]
    (source / "web").mkdir()
    (source / "web" / "1.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    job.table += "_TEXT"

    finished = job.run(
        source=FileSourceSpec(path=str(source), pattern="*.log", format="text", text_column="MESSAGE")
    )

    assert finished.code == 0, finished.err[-3000:]
    rows = local_service.sql(f"SELECT MESSAGE FROM LOCAL.PUBLIC.{job.table}")
    assert sorted(row["MESSAGE"] for row in rows) == sorted(lines)
    assert job.committed("web") == {"web": "1.log:3"}


def test_order_within_a_channel_is_the_order_of_the_lines(job, source):
    write_rows(source / "a" / "1.ndjson", range(2000))

    finished = job.run(limits=BatchLimits(rows=300, requests_per_second=100.0))

    assert finished.code == 0, finished.err[-3000:]
    rows = job.service.sql(f"SELECT ID FROM LOCAL.PUBLIC.{job.table}")
    assert [int(row["ID"]) for row in rows] == list(range(2000))


def test_rejected_rows_abort_the_run_and_say_where_to_look(job, source):
    write_rows(source / "a" / "1.ndjson", range(5))
    with (source / "a" / "1.ndjson").open("a") as file:
        file.write('{"ID": "not a number"}\n{"ID": 6}\n')

    finished = job.run()

    line = _refused(finished, "RowsRejectedError")
    assert "skipped 1 row(s)" in line
    assert job.channel("a") in line
    assert f"ERROR_TABLE({job.table})" in line
    assert finished.report.error_type == "RowsRejectedError"
    assert [(c.rejected, c.committed) for c in finished.report.channels] == [(1, True)]
    assert ids_in(job.service, job.table) == [0, 1, 2, 3, 4, 6]


def test_rejected_rows_are_reported_when_the_plan_says_continue(job, source):
    write_rows(source / "a" / "1.ndjson", range(5))
    with (source / "a" / "1.ndjson").open("a") as file:
        file.write('{"ID": "not a number"}\n')

    finished = job.run(on_error="continue")

    assert finished.code == 0, finished.err[-3000:]
    assert [(c.rows, c.rejected, c.to_token) for c in finished.report.channels] == [(6, 1, "1.ndjson:6")]


def test_run_that_does_not_wait_reports_rows_as_not_committed(job, source):
    write_rows(source / "a" / "1.ndjson", range(5))

    finished = job.run(wait_for_commit=False)

    assert finished.code == 0, finished.err[-3000:]
    assert [(c.rows, c.target_token, c.committed) for c in finished.report.channels] == [
        (5, "1.ndjson:5", False)
    ]


def test_unknown_table_is_refused_before_anything_is_read(job, source):
    _fill(source)
    job.table = "NO_SUCH_TABLE"

    finished = job.run()

    assert "NO_SUCH_TABLE-STREAMING" in _refused(finished, "PipeNotFoundError")
    assert finished.report.channels == ()


def test_submitted_job_with_a_wrong_key_ends_with_one_line(job, source):
    _fill(source)
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    job.key_pem = stranger.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    with job.start() as running:
        finished = running.wait()

    line = _refused(finished, "AuthenticationError")
    assert "credentials" in line
    assert "PRIVATE KEY" not in finished.out + finished.err
    job.key_pem = None
    assert {status.code for status in job.statuses("ewr", "jfk").values()} == {MISSING}


def test_token_of_another_format_is_refused_and_the_channels_stay_untouched(job, source):
    _fill(source)
    _open_and_commit(job, "jfk", "17")
    before = job.statuses("ewr", "jfk")

    finished = job.run()

    line = _refused(finished, "OffsetTokenError")
    assert job.channel("jfk") in line
    assert "'17'" in line
    assert "file:line" in line
    assert job.statuses("ewr", "jfk") == before
    assert before["ewr"].code == MISSING


@pytest.mark.parametrize(
    ("token", "evidence"),
    [
        ("04.ndjson:7", "sort before that file"),
        ("02a.ndjson:7", "not among those"),
        ("02.ndjson:101", "has 100 line(s)"),
    ],
)
def test_source_that_lacks_the_committed_position_is_refused_untouched(job, source, token, evidence):
    _fill(source)
    _open_and_commit(job, "jfk", token)
    before = job.statuses("ewr", "jfk")

    finished = job.run()

    line = _refused(finished, "SourcePositionError")
    assert token in line or "line 101 of it" in line
    assert evidence in line
    assert job.statuses("ewr", "jfk") == before
    assert before["ewr"].code == MISSING
    assert ids_in(job.service, job.table) == [-1]


def test_skip_goes_on_after_a_committed_file_that_is_gone(job, source):
    _fill(source)
    _open_and_commit(job, "jfk", "02a.ndjson:7")

    finished = job.run(on_data_loss="skip")

    assert finished.code == 0, finished.err[-3000:]
    assert ids_in(job.service, job.table) == sorted({-1, *range(900)} - set(range(300, 500)))


@pytest.mark.parametrize("case", ["missing", "empty"])
def test_source_without_files_is_refused_by_path(job, source, case):
    path = source / "nowhere" if case == "missing" else source

    finished = job.run(source=FileSourceSpec(path=str(path)))

    assert str(path) in _refused(finished, "SourceMissingError")


class _ExpiredOnce(SnowpipeClient):
    """Hands out one token that has ended when it is told to; the service's idea of its end is later."""

    spoiled = False
    handed_out = 0

    def scoped_token(self):
        token = super().scoped_token()
        self.handed_out += 1
        if not self.spoiled:
            return token
        self.spoiled = False
        return replace(token, expires_at=time.time())


def test_round_whose_token_ended_is_followed_by_another_one(job, source, spark):
    write_rows(source / "a" / "1.ndjson", range(100))
    write_rows(source / "b" / "1.ndjson", range(100, 120))
    plan = job.plan()
    key = KeyPair(job.service.account, job.service.user, Path(job.service.key_file).read_bytes())
    with _ExpiredOnce(plan.account_url, key, plan.pipe, ca_bundle=plan.ca_bundle) as client:
        run = Run(plan, client)
        run.prepare()
        before, client.spoiled = client.handed_out, True
        run.load(spark.sparkContext)
        rounds = client.handed_out - before
        run.verify()

    assert rounds == 2
    assert ids_in(job.service, job.table) == list(range(120))
    assert [(c.partition, c.rows, c.committed) for c in run.channels] == [("a", 100, True), ("b", 20, True)]


def test_task_stops_ahead_of_its_tokens_end_and_the_next_one_goes_on(job, source):
    write_rows(source / "a" / "1.ndjson", range(1000))
    (partition,) = FileSource(job.source, "fail").partitions()
    slow = SinkSettings(
        account_url=job.service.url,
        ca_bundle=str(job.service.ca_file),
        pipe=job.pipe,
        wait_for_commit=True,
        commit_timeout=30.0,
        limits=BatchLimits(rows=10, requests_per_second=10),
    )
    work = PartitionWork(job.channel("a"), partition, None, partition.resume(None))
    with job.service.client(job.table) as client:
        client.pipe_info()
        token = client.scoped_token()

    expired = load_partition(slow, replace(token, expires_at=time.time() - 1), work)
    short = load_partition(slow, replace(token, expires_at=time.time() + 4), work)
    rest = load_partition(replace(slow, limits=BatchLimits()), token, work)

    assert (expired.complete, expired.error_type, expired.rows) == (False, None, 0)
    assert not short.complete
    assert 0 < short.rows < 1000
    assert (rest.complete, short.rows + rest.rows, str(rest.position)) == (True, 1000, "1.ndjson:1000")
    assert ids_in(job.service, job.table) == list(range(1000))
