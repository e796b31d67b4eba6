"""The job on real Spark against a real local service, in the process's session.

Others submit it: ``test_kubernetes`` and the system tests; ``test_bulk_load_submit`` the job of files.
"""

import json
import re
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_provider_snowpipe.spark.sources.files.spec import Csv, FileSourceSpec, Ndjson
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.table_schema import columns_of_describe
from tests.checkpoints import shown
from tests.spark_job import SparkJob, ids_in, new_table, numbered_name, write_rows

pytestmark = pytest.mark.spark

BAD = {"ID": "no number"}
OTHER_PYTHON = """#!/bin/sh
exec "{python}" -c '
import runpy, sys

class Other(tuple):
    major, minor, micro, releaselevel, serial = 3, 9, 0, "final", 0

sys.version_info = Other((3, 9, 0, "final", 0))
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
' "$@"
"""
"""Reports that it is Python 3.9, which is all that PySpark checks."""


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


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("sales", "eu_orders", "eu_orders/p", False), ("sales_eu", "orders", "orders/p", False)),
        (("sales", "orders", "january/orders/p", False), ("sales", "orders", "february/orders/p", False)),
        (("sales", "orders", "orders/p", True), ("sales", "orders", "orders/p", False)),
    ],
    ids=["two DAGs whose channels have one name", "another path", "another header"],
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

    first = job.run(limits=BatchLimits(rows=50))

    assert first.code == 0, first.err[-3000:]
    loaded = [line for line in range(1, 299) if line not in (7, 8, 9, 150)]
    assert ids_in(job.service, job.table) == loaded
    a, b = job.channel("a"), job.channel("b")
    expected = [(a, f"1/1.ndjson:{line}") for line in (7, 9, 150, 299, 300)]
    expected += [(b, "2/1.ndjson:1"), (b, "2/1.ndjson:2")]
    dead_letters = _dead_letters(tmp_path / "dead letters")
    assert sorted((row["channel"], row["position"]) for row in dead_letters) == sorted(expected)
    found = {(row["channel"], row["position"]): row for row in dead_letters}
    assert found[a, "1/1.ndjson:7"]["column"] == "ID"
    assert found[a, "1/1.ndjson:7"]["reason"] == "the value cannot be converted to NUMBER(38,0)"
    assert found[a, "1/1.ndjson:7"]["payload"] == json.dumps(BAD).encode()
    assert found[a, "1/1.ndjson:7"]["application"] == f"load {job.table}"
    assert (found[a, "1/1.ndjson:9"]["column"], found[a, "1/1.ndjson:9"]["payload"]) == (None, b"{torn")
    assert [(one.rows, one.rejected, one.dead_lettered) for one in first.report.channels] == [
        (len(loaded), 0, 5),
        (0, 0, 2),
    ]
    assert f"rows={len(loaded)} rejected=0 dead_lettered=5" in first.out
    # The token passes the bad rows at the end, with the last good ones and where there are none.
    assert job.committed("a", "b") == {"a": "1.ndjson:300", "b": "1.ndjson:2"}

    _write(source / "b" / "1.ndjson", [_good(1003)])
    second = job.run()

    assert second.code == 0, second.err[-3000:]
    assert job.committed("a", "b") == {"a": "1.ndjson:300", "b": "1.ndjson:3"}
    assert ids_in(job.service, job.table) == [*loaded, 1003]
    assert len(_dead_letters(tmp_path / "dead letters")) == len(expected)


def test_another_python_on_the_executors_is_refused(job, source, tmp_path, shared_spark, monkeypatch):
    write_rows(source / "a" / "1.ndjson", range(5))
    other = tmp_path / "python-of-executors"
    other.write_text(OTHER_PYTHON.format(python=sys.executable))
    other.chmod(0o755)
    monkeypatch.setattr(shared_spark.sparkContext, "pythonExec", str(other))  # as PYSPARK_PYTHON sets it

    finished = job.run()

    line = _refused(finished, "ConfigurationError")
    assert "the executors run Python 3.9, the driver Python {}.{}".format(*sys.version_info[:2]) in line
    assert "PYSPARK_PYTHON" in line
    assert finished.report.error_type == "ConfigurationError"
    assert not job.statuses("a")["a"].exists
    assert ids_in(job.service, job.table) == []
