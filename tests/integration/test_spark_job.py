"""The job on real Spark against a real local service, in the process's session.

Others submit it: ``test_kubernetes`` and the system tests; ``test_bulk_load_submit`` the job of files.
"""

import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from airflow_provider_snowpipe.spark.sources.files.spec import Csv, FileSourceSpec, Ndjson
from tests.checkpoints import shown
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
        source=FileSourceSpec(path=str(tmp_path / "source"), format=Ndjson(growing=True)),
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


def _refused(finished, kind):
    """The one line that a failed run prints."""
    assert finished.code == 1, finished.err[-3000:]
    (line,) = finished.error_lines
    assert line.startswith(f"snowpipe error: {kind}: "), line
    assert "Traceback" not in finished.out + finished.err
    return line


def test_job_loads_once_shows_no_secret_and_later_runs_load_only_what_was_added(job, source):
    groups = _fill(source)
    secret = "".join(Path(job.service.key_file).read_text().split("\n")[1:3])[:80]

    first = job.run()

    assert first.code == 0, first.err[-3000:]
    assert ids_in(job.service, job.table) == list(range(900))
    assert job.committed(*groups) == dict.fromkeys(groups, "03.ndjson:100")
    found = [
        (c.partition, c.from_token, shown(c.to_token), c.rows, c.committed) for c in first.report.channels
    ]
    assert found == [(group, None, "03.ndjson:100", 300, True) for group in groups]
    assert first.report.bytes == sum(path.stat().st_size for path in source.rglob("*.ndjson"))
    line = rf"snowpipe loaded channel={job.channel('ewr')} from=NULL to=\d+/03\.ndjson:100~\S+ rows=300"
    assert re.search(line, first.out)

    left = {path.name: path.read_text() for path in (job.directory / "run1").iterdir() if path.is_file()}
    assert "credentials.json" not in left
    assert not [name for name, text in left.items() if secret in text or "BEGIN" in text]
    assert not [name for name, text in left.items() if "eyJ" in text]
    assert "private_key" not in left["plan.json"]

    second = job.run()

    assert second.code == 0, second.err[-3000:]
    assert [
        (shown(c.from_token), shown(c.target_token), c.rows, c.bytes) for c in second.report.channels
    ] == [("03.ndjson:100", "03.ndjson:100", 0, 0)] * 3
    assert ids_in(job.service, job.table) == list(range(900))

    write_rows(source / "ewr" / "03.ndjson", range(900, 910))
    write_rows(source / "jfk" / "04.ndjson", range(910, 915))
    write_rows(source / "jfk" / "04.ndjson", [915], end="")
    write_rows(source / "lga" / "02b.ndjson", range(920, 924))  # late by its name
    third = job.run()

    assert third.code == 0, third.err[-3000:]
    assert [(shown(c.to_token), c.rows) for c in third.report.channels] == [
        ("03.ndjson:110", 10),
        ("04.ndjson:5", 5),
        ("02b.ndjson:4", 4),
    ]
    assert ids_in(job.service, job.table) == [*range(915), *range(920, 924)]


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


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("sales", "eu_orders", "eu_orders/p", False), ("sales_eu", "orders", "orders/p", False)),
        (("sales", "orders", "orders/eu_p", False), ("sales", "orders_eu", "orders_eu/p", False)),
        (("sales", "orders", "january/orders/p", False), ("sales", "orders", "february/orders/p", False)),
        (("sales", "orders", "orders/p", True), ("sales", "orders", "orders/p", False)),
    ],
    ids=["two DAGs whose channels have one name", "two sources of a DAG", "another path", "another header"],
)
def test_load_of_another_source_into_a_channel_is_refused(job, tmp_path, first, second):
    def run(prefix, name, folder, header):
        path = tmp_path / folder
        path.mkdir(parents=True, exist_ok=True)
        (path / "1.csv").write_text("".join(f"{number},f,n\n" for number in range(5)))
        source = FileSourceSpec(
            path=str(path.parent), format=Csv(header=header, column_names=["ID", "FILE", "NOTE"])
        )
        return job.run(source=source, channel_prefix=prefix, source_name=name)

    assert run(*first).code == 0
    loaded = ids_in(job.service, job.table)
    line = _refused(run(*second), "SourceChangedError")

    assert f"{'_'.join(first[:2])}_{Path(first[2]).name}" in line
    assert ids_in(job.service, job.table) == loaded == list(range(int(first[3]), 5))


def test_load_of_a_renamed_dag_is_refused_until_it_takes_the_earlier_channels_over(job, source):
    groups = _fill(source)
    assert job.run().code == 0
    write_rows(source / "ewr" / "04.ndjson", range(900, 910))
    job.options["channel_prefix"] = "renamed"

    line = _refused(job.run(), "SourceChangedError")
    assert f"test_{job.table}_" in line
    assert set(job.committed(*groups).values()) == {None}

    for rebind in ("continue", None):
        done = job.run(rebind=rebind)
        assert done.code == 0, done.err[-3000:]
        assert ids_in(job.service, job.table) == list(range(910))
        assert done.report.rows == (10 if rebind else 0)
