"""Bodies in flight at rest: encrypted on disk, also after kill -9; keys rotate while they wait."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from snowpipe_local.testing import LocalService
from tests.streaming_rest import Rest, continuation, encrypted

from tests.waiting import wait_until

MARKER = b"nobody may read this row at rest"


def _rows(first: int, count: int) -> bytes:
    return b"".join(b'{"id":%d,"name":"%s"}\n' % (i, MARKER) for i in range(first, first + count))


def _files(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in folder.rglob("*") if path.is_file()]


def _with_marker(service: LocalService) -> list[Path]:
    return [path for path in _files(service.data_dir) if MARKER in path.read_bytes()]


def _keys(service: LocalService) -> set[str]:
    return set(json.loads((service.data_dir / "spool_keys.json").read_text())["keys"])


def _upload(rest: Rest, body: bytes) -> dict[str, object]:
    """Upload a file that is encrypted as the SDK does and return the fragment that names it."""
    key = rest.info().json()["encryption_info"]["pipe_key"]
    content = encrypted(body, key, bytes(16))
    return {
        "file_path": rest.upload(content), "fragment_start_byte_offset": 0,
        "fragment_length_bytes": len(content), "iv_base64": "AAAAAAAAAAAAAAAAAAAAAA==",
        "fragment_end_offset_token": "99",
    }  # fmt: skip


def _append_file(rest: Rest, token: str, fragment: dict[str, object]) -> None:
    query = {"continuationToken": token, "requestId": "file"}
    answer = rest.call(
        "POST", "/channels/c/filebuffer", route="/v2/streaming/data", params=query, json=[fragment]
    )
    assert answer.status_code == 200, answer.text


@pytest.fixture(scope="module")
def spooling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    """A service that keeps 6,000 bytes of queued rows in memory and takes 20,000 in all."""
    limits = "queued-bytes=20000,queued-bytes-in-memory=6000"
    service = LocalService(tmp_path_factory.mktemp("spooling"), limits=limits, admin=True)
    yield service
    service.kill()


@pytest.fixture
def service(spooling: LocalService) -> LocalService:
    """It holds its commits; each test finds it empty and may kill it."""
    if not spooling.is_running:
        spooling.kill()
        spooling.start()
    spooling.drop_everything()
    spooling.sql("CREATE TABLE t (id INT, name VARCHAR)")
    spooling.set_faults("hold-commits")
    return spooling


def test_keys_rotate_while_bodies_wait_and_while_the_service_is_stopped(
    service: LocalService, tmp_path: Path
) -> None:
    rest = Rest(service, "T")
    rest.append("c", continuation(rest.open("c")), _rows(0, 200), "199")
    fragment = _upload(rest, _rows(200, 90))
    first = _keys(service)
    assert json.loads(service.cli("rotate-key").stdout) == {"keys": 2, "bodies": 2}
    service.admin("faults", clear=True)
    rest.wait_for_token("c", "199")
    second = _keys(service) - first
    service.stop()
    assert json.loads(service.cli("rotate-key").stdout) == {"keys": 2, "bodies": 1}
    assert len(_keys(service) - first - second) == 1
    service.start()
    rest = Rest(service, "T")
    _append_file(rest, continuation(rest.open("c")), fragment)
    rest.wait_for_token("c", "99")
    assert service.sql("SELECT count(*) n, count(DISTINCT id) d FROM t") == [{"N": 290, "D": 290}]
    # The old key goes with the last of its bodies.
    wait_until(lambda: len(_keys(service)) == 1, what="the old key's end")
    assert not _keys(service) & first
    done = LocalService(tmp_path / "never").cli("rotate-key")
    assert (done.returncode, "no local service was ever started" in done.stderr) == (1, True)


def test_no_row_in_flight_is_readable_on_disk_not_even_after_kill_9(service: LocalService) -> None:
    rest = Rest(service, "T")
    token = continuation(rest.open("c"))
    for number in range(3):
        token = continuation(rest.append("c", token, _rows(number * 100, 100), str(number)))
    # A client that does not encrypt its upload is no exception.
    rest.upload(_rows(0, 100))
    assert len(_files(service.data_dir / "spool")) == 2
    assert len(_files(service.data_dir / "stage")) == 1
    assert _with_marker(service) == []
    service.kill()
    assert _with_marker(service) == []
    service.restart()
    assert _files(service.data_dir / "spool") == []
    assert Rest(service, "T").committed("c") is None
