"""Bodies in flight on disk: sealed, bound to their file, readable until gone when the key rotates."""

import errno
import json
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.engine import spool as disk
from snowpipe_local.engine.spool import Spool, SpoolError, has_space, is_full, is_invalidated
from snowpipe_local.errors import DataDirectoryError

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
    (key,) = json.loads(home.spool_keys_file.read_text())["keys"].values()
    other = spool.park(SECRET)
    assert key not in repr(spool) + repr(other) + repr(vars(spool))
    for _ in range(2):
        parked.remove()
    assert list(home.spool_dir.iterdir()) == [other.path]
    assert spool.files == 2  # with the upload
    with pytest.raises(SpoolError, match="disk"):
        parked.read()


def test_a_body_that_was_changed_cut_or_moved_or_is_none_is_not_read(home, tmp_path):
    other_home = DataDirectory(tmp_path / "other")
    other_home.create()
    foreign = upload(other_home, start(other_home)).read_bytes()
    spool = start(home)
    good, other = upload(home, spool), upload(home, spool, "b.bin")
    content = good.read_bytes()
    for wrong in (
        content[:-1] + bytes([content[-1] ^ 1]), content[:30], content[:3], b"", SECRET, b"SPB1", foreign,
        b"SPB1" + b"\xff" * 40,
    ):  # fmt: skip
        good.write_bytes(wrong)
        with pytest.raises(SpoolError):
            spool.read(good)
    os.replace(other, good)
    with pytest.raises(SpoolError, match="changed"):
        spool.read(good)


def test_after_a_rotation_bodies_are_readable_and_the_old_key_goes_with_the_last_of_them(home):
    spool = start(home)
    (unused,) = spool.key_ids
    spool.rotate()
    (first,) = spool.key_ids
    assert first != unused
    old = [spool.park(SECRET), spool.park(SECRET)]
    spool.rotate()
    new = spool.park(SECRET)
    for body in old:
        assert len(spool.key_ids) == 2
        assert body.read() == new.read() == SECRET
        body.remove()
    assert first not in home.spool_keys_file.read_text()
    assert (len(spool.key_ids), new.read()) == (1, SECRET)


def test_a_restart_keeps_uploads_and_drops_the_queue_and_what_nobody_can_read(home):
    spool = start(home)
    kept = upload(home, spool)
    half = upload(home, spool, "half.bin").rename(kept.with_name(".half.bin.1234"))
    stale = upload(home, spool, "stale.bin")
    os.utime(stale, (time.time() - 90_000, time.time() - 90_000))
    plain = kept.with_name("plain.bin")
    plain.write_bytes(SECRET)
    foreign = kept.with_name("foreign.bin")
    foreign.write_bytes(b"SPB1" + b"0" * 60)
    parked = spool.park(SECRET)
    spool.rotate()
    again = start(home)
    assert again.read(kept) == SECRET
    assert [path.exists() for path in (half, stale, plain, foreign, parked.path)] == [False] * 5
    assert len(again.key_ids) == 2
    again.remove(kept)
    assert len(again.key_ids) == 1
    assert not any(start(home).key_ids - again.key_ids)


def test_a_body_that_the_disk_refuses_is_not_counted_and_needs_no_key(home):
    spool = start(home)
    home.spool_dir.rmdir()
    with pytest.raises(FileNotFoundError):
        spool.park(SECRET)
    with pytest.raises(FileNotFoundError):
        spool.write(home.stage_dir / "missing" / "a.bin", SECRET)
    assert spool.files == 0
    spool.rotate()
    assert len(spool.key_ids) == 1


def test_a_damaged_key_file_is_named(home):
    start(home)
    known = home.spool_keys_file.read_text()
    (name,) = json.loads(known)["keys"]
    more_than_base64 = known.replace(
        f'"{json.loads(known)["keys"][name]}', f'"!{json.loads(known)["keys"][name]}'
    )
    for content in ["", "{}", "[]", '{"keys":{"a":"AA=="},"current":"a"}', more_than_base64]:
        home.spool_keys_file.write_text(content)
        with pytest.raises(DataDirectoryError, match=r"spool_keys\.json.*damaged"):
            start(home)


def test_only_a_full_disk_is_one_and_room_is_free_without_the_reserve(tmp_path, monkeypatch):
    free = 100 + disk.RESERVED_BYTES
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    assert [has_space(tmp_path, size) for size in (99, 100, 101)] == [True, True, False]
    for error, full, invalidated in [
        (OSError(errno.ENOSPC, "no space"), True, False), (OSError(errno.EDQUOT, "quota"), True, False),
        (OSError(errno.EACCES, "No space left on device"), False, False),
        (ValueError("has been invalidated: No space left on device"), False, False),
        (duckdb.IOException("IO Error: No space left on device"), True, False),
        (duckdb.IOException("IO Error: Disk quota exceeded"), True, False),
        (duckdb.FatalException("the database has been invalidated"), False, True),
        (duckdb.IOException("IO Error: another one"), False, False),
    ]:  # fmt: skip
        assert (is_full(error), is_invalidated(error)) == (full, invalidated)
