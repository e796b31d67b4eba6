"""The job on real Spark against a real local service, in the process's session.

Others submit it: ``test_kubernetes`` and the system tests; ``test_bulk_load_operator`` the job of files.
"""

import re
from pathlib import Path

import pytest

from airflow_provider_snowpipe.spark.sources.files.spec import FileSource, Ndjson
from tests.checkpoints import shown
from tests.spark_job import SparkJob, ids_in, new_table, numbered_name, write_rows

pytestmark = pytest.mark.spark


@pytest.fixture
def job(local_service, tmp_path, shared_spark):
    """A job with its own table and an empty growing source."""
    (tmp_path / "source").mkdir()
    return SparkJob(
        service=local_service,
        directory=tmp_path / "runs",
        table=new_table(local_service, numbered_name("JOB")),
        source=FileSource(path=str(tmp_path / "source"), format=Ndjson(growing=True)),
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
