"""Manifests: what they hold, and what load history reports of their files."""

from __future__ import annotations

import dataclasses
import datetime as dt

import pytest

from airflow_provider_snowpipe.bulk.run_files import (
    RunManifest,
    WrittenFile,
    loaded_files,
    refuse_loaded_folder,
    refuse_other_files,
    run_folder,
)
from airflow_provider_snowpipe.bulk.staged_files import FileLoad
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, FilesGivenTwiceError

FILES = (WrittenFile("a1/one.parquet", 10, 3), WrittenFile("a1/two.parquet", 20, 4))
MANIFEST = RunManifest("d/r/t/-1", "a1", FILES, ("ID", "V"), ("V",))
FOLDER = "d.r.t.-1-0123"
WHEN = dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)


def load(path: str, **changes: object) -> FileLoad:
    return dataclasses.replace(FileLoad(path, "S", "LOADED", 3, 3, loaded_at=WHEN), **changes)  # type: ignore[arg-type]


def test_a_manifest_comes_back_as_it_was_written() -> None:
    assert RunManifest.from_json(MANIFEST.to_json(), "m") == MANIFEST
    assert (MANIFEST.rows, MANIFEST.bytes) == (7, 30)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", MANIFEST.to_json().replace('"manifest_version": 1', '"manifest_version": 2')],
    ids=["nothing", "list", "object", "version"],
)
def test_what_is_no_manifest_of_this_version_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="run_key"):
        RunManifest.from_json(text, "@S/x")


def test_a_folder_is_the_same_for_every_attempt_and_of_one_piece_of_work() -> None:
    names = ("d", "manual__2026-01-01T00:00:00+00:00", "t", "-1")

    assert run_folder(names, "T") == run_folder(names, "T")
    assert run_folder(names, "T") != run_folder(names, "U")
    assert run_folder(("a", "b.c")) != run_folder(("a.b", "c"))
    assert run_folder(names) == "d.manual__2026-01-01T00-00-00-00-00.t.-1-a6a329279e2055d3"
    assert run_folder((".Xa", "b-.")).startswith("Xa.b-")


def test_history_knows_files_by_the_end_of_their_paths() -> None:
    history = [
        load(f"in/{FOLDER}/a1/two.parquet", pipe="DB.S.P"),
        load("other/a1/one.parquet"),
        load(f"{FOLDER}/in/{FOLDER}/a1/one.parquet"),
        load("a1/two.parquet", location=f"@DB.S.STAGE/in/{FOLDER}/"),
        load(f"in/{FOLDER}/a0/one.parquet"),
    ]

    found = loaded_files(MANIFEST, FOLDER, history)
    assert {name: one.path for name, one in found.items()} == {
        "a1/one.parquet": f"{FOLDER}/in/{FOLDER}/a1/one.parquet",
        "a1/two.parquet": "a1/two.parquet",
    }


def test_a_folder_of_which_files_are_loaded_is_refused_with_the_evidence() -> None:
    refuse_loaded_folder(
        FOLDER, "d/r/t/-1", [load("x/one.parquet"), load(f"{FOLDER}/a", status="LOAD_FAILED")]
    )

    with pytest.raises(FilesGivenTwiceError, match=r"1 files of d/r/t/-1 \(3 rows, the first one at 2026"):
        refuse_loaded_folder(FOLDER, "d/r/t/-1", [load(f"in/{FOLDER}/a1/one.parquet")])
    with pytest.raises(FilesGivenTwiceError, match=r"\(3 rows\)"):
        refuse_loaded_folder(FOLDER, "w", [load(f"in/{FOLDER}/a1/one.parquet", loaded_at=None)])


def test_files_of_a_folder_that_its_manifest_does_not_have_are_refused_with_the_evidence() -> None:
    own = [load(f"in/{FOLDER}/a1/one.parquet"), load(f"in/{FOLDER}/a1/two.parquet")]
    refuse_other_files(MANIFEST, FOLDER, [*own, load(f"in/{FOLDER}/a0/one.parquet", status="LOAD_FAILED")])

    with pytest.raises(FilesGivenTwiceError, match=r"1 files of d/r/t/-1 .* 'a0/one.parquet': another try"):
        refuse_other_files(MANIFEST, FOLDER, [*own, load(f"in/{FOLDER}/a0/one.parquet")])
    with pytest.raises(FilesGivenTwiceError) as refused:
        refuse_other_files(MANIFEST, FOLDER, [*own, load("x.parquet", location=f"@DB.S.S/{FOLDER}/aX/")])
    assert refused.value.files == ("aX/x.parquet",)
