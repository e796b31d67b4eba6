"""How many files are read and brought to a worker before Spark combines them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest

from airflow_provider_snowpipe.bulk.run_files import CompactForm, CompactOptions
from airflow_provider_snowpipe.operators.stage_files import CompactedStage, SourceFiles
from airflow_provider_snowpipe.streaming.errors import SourceUnavailableError
from tests.airflow_version import AIRFLOW

FORM = CompactForm("ndjson", ".ndjson", header=False, splits=True)


def stage(source: SourceFiles, parallel: int = 3) -> CompactedStage:
    hook: Any = None
    return CompactedStage(hook, "@S", source, CompactOptions(), parallel)


@pytest.mark.parametrize("count", [1, 2, 25, 1_203])
def test_every_file_of_this_machine_is_read_where_it_is_in_order(tmp_path, count):
    (tmp_path / "in").mkdir()
    for number in range(count):
        (tmp_path / "in" / f"{number:05}.ndjson").write_text("{}\n")
    source = SourceFiles([str(tmp_path / "in")])

    paths = stage(source)._here(source.find(), tmp_path / "brought", FORM)

    assert paths == [str(tmp_path / "in" / f"{number:05}.ndjson") for number in range(count)]
    assert list((tmp_path / "brought").iterdir()) == []


@pytest.mark.skipif(AIRFLOW < (3, 2), reason="before Airflow 3.2 a provider has to bring each storage")
def test_objects_of_a_store_are_fetched_in_order_and_a_missing_one_is_reported(tmp_path):
    store = fsspec.filesystem("memory")
    store.pipe({f"/brought/{number:03}.ndjson": b"%d\n" % number for number in range(100)})
    source = SourceFiles(["memory:///brought"])
    files = source.find()

    paths = stage(source)._here(files, tmp_path / "one", FORM)
    assert [Path(path).read_text() for path in paths] == [f"{number}\n" for number in range(100)]

    store.rm("/brought/050.ndjson")
    with pytest.raises(SourceUnavailableError, match=r"050\.ndjson"):
        stage(source)._here(files, tmp_path / "two", FORM)
    store.rm("/brought", recursive=True)
