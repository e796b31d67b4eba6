"""The job on real Spark against a real local service: submitted where that matters, else in process."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from airflow_provider_snowpipe.spark.sources.files.spec import FileSourceSpec
from airflow_provider_snowpipe.streaming.channel import Channel
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


def test_unknown_table_is_refused_before_anything_is_read(job, source):
    _fill(source)
    job.table = "NO_SUCH_TABLE"

    finished = job.run()

    assert "NO_SUCH_TABLE-STREAMING" in _refused(finished, "PipeNotFoundError")
    assert finished.report.channels == ()


def test_job_with_a_wrong_key_ends_with_one_line(job, source):
    _fill(source)
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    job.key_pem = stranger.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    finished = job.run()

    line = _refused(finished, "AuthenticationError")
    assert "credentials" in line
    assert "PRIVATE KEY" not in finished.out + finished.err
    job.key_pem = None
    assert {status.code for status in job.statuses("ewr", "jfk").values()} == {MISSING}


def test_source_that_lacks_the_committed_position_is_refused_untouched(job, source):
    _fill(source)
    _open_and_commit(job, "jfk", "02.ndjson:101")
    before = job.statuses("ewr", "jfk")

    finished = job.run()

    line = _refused(finished, "SourcePositionError")
    assert "has 100 line(s)" in line
    assert job.statuses("ewr", "jfk") == before
    assert before["ewr"].code == MISSING
    assert ids_in(job.service, job.table) == [-1]
