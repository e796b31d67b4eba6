"""Bodies in flight on disk: sealed, bound to their file, readable until gone when the key rotates."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from airflow_provider_snowpipe.local.datadir import DataDirectory
from airflow_provider_snowpipe.local.engine.spool import Spool, SpoolError
from airflow_provider_snowpipe.local.errors import DataDirectoryError

SECRET = b'{"name":"nobody may read this at rest"}\n' * 100


@pytest.fixture
def home(tmp_path):
    home = DataDirectory(tmp_path / "data")
    home.create()
    return home


def start(home: DataDirectory) -> Spool:
    return Spool(home.spool_dir, home.stage_dir, home.spool_keys_file)


def upload(home: DataDirectory, spool: Spool, name: str = "a.bin") -> Path:
    path = home.stage_dir / ("0" * 16) / name
    path.parent.mkdir(exist_ok=True)
    spool.write(path, SECRET)
    return path


def test_a_body_comes_back_as_it_was_and_is_unreadable_on_disk(home):
    spool = start(home)
    parked, uploaded = spool.park(SECRET), upload(home, spool)
    assert parked.read() == spool.read(uploaded) == SECRET
    for path in (parked.path, uploaded):
        assert b"nobody" not in path.read_bytes()
        assert path.stat().st_mode & 0o777 == 0o600
    assert home.spool_keys_file.stat().st_mode & 0o777 == 0o600


def test_a_removed_body_is_gone(home):
    parked = start(home).park(SECRET)
    parked.remove()
    parked.remove()
    assert list(home.spool_dir.iterdir()) == []
    with pytest.raises(SpoolError, match="not on disk"):
        parked.read()


def test_a_body_that_was_changed_cut_or_moved_is_not_read(home):
    spool = start(home)
    good, other = upload(home, spool), upload(home, spool, "b.bin")
    content = good.read_bytes()
    for wrong in (content[:-1] + bytes([content[-1] ^ 1]), content[:30], content[:3], b""):
        good.write_bytes(wrong)
        with pytest.raises(SpoolError):
            spool.read(good)
    os.replace(other, good)
    with pytest.raises(SpoolError, match="changed"):
        spool.read(good)


def test_after_a_rotation_old_bodies_are_readable_until_gone_and_then_the_old_key_is_deleted(home):
    spool = start(home)
    old = spool.park(SECRET)
    (first,) = spool.key_ids
    spool.rotate()
    new = spool.park(SECRET)
    assert len(spool.key_ids) == 2
    assert old.read() == new.read() == SECRET
    old.remove()
    assert first not in spool.key_ids
    assert first not in home.spool_keys_file.read_text()
    assert new.read() == SECRET
    assert len(spool.key_ids) == 1


def test_a_rotation_without_bodies_leaves_the_new_key_only(home):
    spool = start(home)
    before = spool.key_ids
    spool.rotate()
    assert len(spool.key_ids) == 1
    assert spool.key_ids != before


def test_a_restart_keeps_uploads_and_drops_the_queue_and_what_nobody_can_read(home):
    spool = start(home)
    kept = upload(home, spool)
    half = upload(home, spool, "half.bin").rename(kept.with_name(".half.bin.1234"))
    stale = upload(home, spool, "stale.bin")
    os.utime(stale, (time.time() - 90_000, time.time() - 90_000))
    plain = kept.with_name("plain.bin")
    plain.write_bytes(SECRET)
    parked = spool.park(SECRET)
    spool.rotate()
    again = start(home)
    assert again.read(kept) == SECRET
    assert [path.exists() for path in (half, stale, plain, parked.path)] == [False] * 4
    assert len(again.key_ids) == 2
    again.remove(kept)
    assert len(again.key_ids) == 1
    assert not any(start(home).key_ids - again.key_ids)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"keys":{"a":"AA=="},"current":"a"}'])
def test_a_damaged_key_file_is_named(home, content):
    home.spool_keys_file.write_text(content)
    with pytest.raises(DataDirectoryError, match=r"spool_keys\.json is damaged"):
        start(home)


def test_no_key_is_in_a_representation(home):
    spool = start(home)
    (key,) = json.loads(home.spool_keys_file.read_text())["keys"].values()
    assert key not in repr(spool) + repr(spool.park(SECRET)) + repr(vars(spool))
