"""The job on real Spark against a real local service, in the process's session.

Others submit it: ``test_kubernetes`` and the system tests; ``test_bulk_load_operator`` the job of files.
"""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_provider_snowpipe.spark.sources.files.spec import FileSource, Ndjson
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.table_schema import columns_of_describe
from tests.checkpoints import shown
from tests.local_connection import ids
from tests.spark_job import SparkJob, new_table, numbered_name, write_rows

pytestmark = pytest.mark.spark

BAD = {"ID": "no number"}


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

    first = job.load()

    assert ids(job.service, job.table) == list(range(900))
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

    second = job.load()

    assert [
        (shown(c.from_token), shown(c.target_token), c.rows, c.bytes) for c in second.report.channels
    ] == [("03.ndjson:100", "03.ndjson:100", 0, 0)] * 3
    assert ids(job.service, job.table) == list(range(900))

    write_rows(source / "ewr" / "03.ndjson", range(900, 910))
    write_rows(source / "jfk" / "04.ndjson", range(910, 915))
    write_rows(source / "jfk" / "04.ndjson", [915], end="")
    write_rows(source / "lga" / "02b.ndjson", range(920, 924))  # late by its name
    third = job.load()

    assert [(shown(c.to_token), c.rows) for c in third.report.channels] == [
        ("03.ndjson:110", 10),
        ("04.ndjson:5", 5),
        ("02b.ndjson:4", 4),
    ]
    assert ids(job.service, job.table) == [*range(915), *range(920, 924)]


def _write(path, rows):
    """Add rows to a file; a text is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


def _good(number):
    return {"ID": number, "FILE": "f", "NOTE": "n"}


def _dead_letters(folder):
    return [row for file in folder.rglob("*.parquet") for row in pq.read_table(file).to_pylist()]


def test_bad_rows_are_put_aside_once_and_all_others_are_loaded(job, source, tmp_path):
    job.options = {
        "on_error": "dead_letter",
        "dead_letter_path": str(tmp_path / "dead letters"),
        "columns": columns_of_describe(job.service.sql(f"DESCRIBE TABLE LOCAL.PUBLIC.{job.table}")),
    }
    rows = {line: _good(line) for line in range(1, 301)}
    rows |= {7: BAD, 8: "", 9: "{torn", 150: "[1]", 299: BAD, 300: BAD}
    _write(source / "a" / "1.ndjson", rows.values())
    _write(source / "b" / "1.ndjson", [BAD, BAD])

    first = job.load(limits=BatchLimits(rows=50))

    loaded = [line for line in range(1, 299) if line not in (7, 8, 9, 150)]
    assert ids(job.service, job.table) == loaded
    a, b = job.channel("a"), job.channel("b")
    expected = [(a, f"1/1.ndjson:{line}") for line in (7, 9, 150, 299, 300)]
    expected += [(b, "2/1.ndjson:1"), (b, "2/1.ndjson:2")]
    dead_letters = _dead_letters(tmp_path / "dead letters")
    assert sorted((row["channel"], row["position"]) for row in dead_letters) == sorted(expected)
    payloads = {row["position"]: row["payload"] for row in dead_letters}
    assert (payloads["1/1.ndjson:7"], payloads["1/1.ndjson:9"]) == (json.dumps(BAD).encode(), b"{torn")
    assert [(one.rows, one.rejected, one.dead_lettered) for one in first.report.channels] == [
        (len(loaded), 0, 5),
        (0, 0, 2),
    ]
    assert f"rows={len(loaded)} rejected=0 dead_lettered=5" in first.out
    reported = {(one.where, one.position): one.text for one in first.report.unloaded}
    assert set(reported) == set(expected)
    assert reported[a, "1/1.ndjson:7"] == json.dumps(BAD)[:200]
    # The token passes the bad rows at the end, with the last good ones and where there are none.
    assert job.committed("a", "b") == {"a": "1.ndjson:300", "b": "1.ndjson:2"}

    _write(source / "b" / "1.ndjson", [_good(1003)])
    job.load()

    assert job.committed("a", "b") == {"a": "1.ndjson:300", "b": "1.ndjson:3"}
    assert ids(job.service, job.table) == [*loaded, 1003]
    assert len(_dead_letters(tmp_path / "dead letters")) == len(expected)
