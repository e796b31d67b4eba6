"""Paths in a stage that name what a file holds."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from airflow_provider_snowpipe.bulk.stage import ContentPath, loaded_contents
from airflow_provider_snowpipe.bulk.staged_files import FileLoad
from airflow_provider_snowpipe.streaming.errors import SourcePositionError

NOW = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)


def content_path(folder: Path, text: str, *, channel: str = "p_s_a", name: str = "1 ä.ndjson") -> ContentPath:
    file = folder / "file"
    file.write_text(text)
    return ContentPath.of(channel, name, file, len(text))


def test_the_same_content_has_the_same_path_and_another_one_another(tmp_path: Path) -> None:
    one = content_path(tmp_path, "x")

    assert content_path(tmp_path, "x") == one
    assert (one.folder, one.name) == ("p_s_a", "3bc7dc94-1__.ndjson")
    others = {
        content_path(tmp_path, "y"),
        content_path(tmp_path, "x", channel="p_s a"),
        content_path(tmp_path, "x", name="1__"),
    }
    assert len({other.digest for other in others} | {one.digest}) == 4


@pytest.mark.parametrize(("one", "other"), [("東京", "大阪"), ("a b", "a_b"), ("a b", "a/b"), ("é", "_")])
def test_names_that_differ_stay_different(tmp_path: Path, one: str, other: str) -> None:
    first, second = (
        content_path(tmp_path, "x", channel=name, name=f"{name}.csv.gz") for name in (one, other)
    )

    assert first.folder != second.folder
    assert first.name != second.name
    assert first.name.endswith(".csv.gz")
    assert not loaded_contents([second], [FileLoad(first.path, "S/", "LOADED", 3)])


def test_a_load_by_a_release_that_wrote_the_names_otherwise_is_known_again(tmp_path: Path) -> None:
    one = content_path(tmp_path, "x")
    former = f"p_s_a/{one.digest}/1__.ndjson"

    assert loaded_contents([one], [FileLoad(former, "S/", "LOADED", 3)])[one.path].rows_loaded == 3


def test_only_the_bytes_that_were_listed_count(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("xyz")

    assert ContentPath.of("p_s_a", "1 ä.ndjson", file, 1) == content_path(tmp_path, "x")
    with pytest.raises(SourcePositionError, match="shrank by 9 bytes"):
        ContentPath.of("c", "n", file, 10)


@pytest.mark.parametrize("location", ["DB.S.STAGE/", "DB.S.STAGE/p_s_a/"], ids=["stage", "path"])
def test_loads_are_known_again_wherever_the_location_ends(tmp_path: Path, location: str) -> None:
    one = content_path(tmp_path, "x")
    path = one.path.removeprefix("p_s_a/") if location.endswith("p_s_a/") else one.path
    found = loaded_contents(
        [one], [FileLoad(path, location, "LOADED", 3), FileLoad("other", location, "LOADED")]
    )

    assert {key: load.rows_loaded for key, load in found.items()} == {one.path: 3}


def test_what_failed_or_has_another_path_is_no_load(tmp_path: Path) -> None:
    one = content_path(tmp_path, "x")

    assert not loaded_contents(
        [one], [FileLoad(one.path, "S/", "LOAD_FAILED"), FileLoad("x.csv", "", "LOADED")]
    )


def test_a_load_of_a_former_content_is_an_error_with_its_timestamp(tmp_path: Path) -> None:
    former, now = content_path(tmp_path, "x"), content_path(tmp_path, "y")

    with pytest.raises(SourcePositionError, match=r"has changed: .* loaded 3 rows .* at 2026-01-31 00:00:00"):
        loaded_contents([now], [FileLoad(former.path, "S/", "LOADED", 3, loaded_at=NOW)])
