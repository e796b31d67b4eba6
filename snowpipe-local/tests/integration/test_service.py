"""The local service over its REST front, with plain HTTP requests as a strict client would send them."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from snowpipe_local.testing import LocalService
from tests.streaming_rest import Rest, continuation

from tests.conftest import ServiceFactory


def _rows(first: int, last: int) -> bytes:
    return b"".join(b'{"ID":%d}\n' % i for i in range(first, last + 1))


@pytest.fixture
def rest(local_service: LocalService) -> Rest:
    local_service.sql("CREATE OR REPLACE TABLE t (id INT, name VARCHAR(10))")
    return Rest(local_service, "T")


# -- shapes ------------------------------------------------------------------------------------------------


def test_hostname_is_a_bare_host_for_the_original_credential_only(
    local_service: LocalService, rest: Rest
) -> None:
    url = f"{local_service.url}/v2/streaming/hostname"
    assert rest.call("GET", url, rest.jwt).content == b"127.0.0.1"
    assert rest.call("GET", url, rest.token).status_code == 401


def test_pipe_info_hands_out_a_fresh_prefix_and_a_stable_key(local_service: LocalService, rest: Rest) -> None:
    url = f"{local_service.url}/v2/streaming/databases/local/schemas/public/pipes/t-streaming:pipe-info"
    first, second = (rest.call("POST", url, token, json={}).json() for token in (rest.token, rest.jwt))
    location = first["rowset_stage_location"]
    assert location["storage_endpoint"] == f"127.0.0.1:{local_service.port}"
    assert location["path_prefix"] != second["rowset_stage_location"]["path_prefix"]
    assert first["encryption_info"] == second["encryption_info"]


def test_an_offset_token_given_at_open_is_set(rest: Rest) -> None:
    answer = rest.open("seeded", offset_token="41").json()
    assert answer["channel_status"]["last_committed_offset_token"] == "41"
    assert rest.statuses("seeded")["seeded"]["last_committed_offset_token"] == "41"


# -- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("databases/NOPE/schemas/PUBLIC/pipes/T-STREAMING", "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"),
        ("databases/LOCAL/schemas/NOPE/pipes/T-STREAMING", "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"),
        ("databases/LOCAL/schemas/PUBLIC/pipes/CUSTOM", "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"),
        ("databases/LOCAL/schemas/PUBLIC/pipes/NOPE-STREAMING", "ERR_TABLE_DOES_NOT_EXIST_NOT_AUTHORIZED"),
    ],
)
def test_what_does_not_exist_is_a_404_with_a_code(
    local_service: LocalService, rest: Rest, path: str, code: str
) -> None:
    answer = rest.call("POST", f"{local_service.url}/v2/streaming/{path}:pipe-info", rest.token, json={})
    assert (answer.status_code, answer.json()["code"]) == (404, code)


@pytest.mark.parametrize(
    "path", ["/", "/nope", "/v2/streaming", "/v2/streaming/databases/a/schemas/b/pipes/c:x"]
)
def test_an_unknown_path_is_a_404_with_a_code(local_service: LocalService, rest: Rest, path: str) -> None:
    answer = rest.call("GET", local_service.url + path, rest.jwt)
    assert answer.status_code == 404
    assert answer.json()["code"]


def test_every_call_needs_the_right_token(local_service: LocalService, rest: Rest) -> None:
    pipe = f"{local_service.url}/v2/streaming/databases/LOCAL/schemas/PUBLIC/pipes/T-STREAMING"
    data = pipe.replace("/v2/streaming/", "/v2/streaming/data/")
    calls = [
        ("GET", f"{local_service.url}/v2/streaming/hostname"),
        ("POST", f"{local_service.url}/oauth/token"),
        ("POST", f"{pipe}:pipe-info"),
        ("POST", f"{pipe}:bulk-channel-status"),
        ("PUT", f"{pipe}/channels/c"),
        ("DELETE", f"{pipe}/channels/c"),
        ("POST", f"{data}/channels/c/rows"),
        ("POST", f"{data}/channels/c/filebuffer"),
        ("POST", f"{local_service.url}/api/v2/statements"),
    ]
    form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "scope": "127.0.0.1"}
    for method, url in calls:
        for token in (None, "garbage"):
            answer = rest.call(method, url, token, data=form if url.endswith("token") else None)
            assert answer.status_code == 401, f"{method} {url} with {token}"
            assert set(answer.json()) == {"code", "message"}
    assert rest.call("POST", f"{data}/channels/c/rows", rest.jwt).status_code == 401


@pytest.mark.parametrize("grant", ["urn:ietf:params:oauth:grant-type:token-exchange", "password", ""])
def test_a_grant_that_does_not_fit_the_credential_is_a_400_with_the_reason(
    local_service: LocalService, rest: Rest, grant: str
) -> None:
    form = {"grant_type": grant, "scope": "127.0.0.1"}
    answer = rest.call("POST", f"{local_service.url}/oauth/token", rest.jwt, data=form)
    assert answer.status_code == 400
    assert "grant type" in answer.json()["message"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"continuationToken": ""}, 400),
        ({"continuationToken": "rubbish"}, 400),
        ({"requestId": ""}, 400),
    ],
)
def test_malformed_appends_are_a_400(rest: Rest, query: dict[str, str], status: int) -> None:
    token = continuation(rest.open("c"))
    assert rest.append("c", token, _rows(1, 1), params=query).status_code == status


def test_broken_bodies_are_a_400_and_the_channel_lives_on(rest: Rest) -> None:
    token = continuation(rest.open("c"))
    answer = rest.append("c", token, b"not zstd", headers={"Content-Encoding": "zstd"})
    assert answer.status_code == 400
    assert rest.append("c", token, _rows(1, 1), "1").status_code == 200
    for body in (b"{", b"[]", b'{"channel_names":1}', b'{"channel_names":[1]}'):
        url = f"{rest._base}/{rest._pipe}:bulk-channel-status"
        assert rest.call("POST", url, rest.token, data=body).status_code == 400


# -- sessions of a channel ---------------------------------------------------------------------------------


def test_truncating_the_table_keeps_the_tokens(local_service: LocalService, rest: Rest) -> None:
    token = continuation(rest.open("c"))
    rest.append("c", token, _rows(1, 1), "1")
    rest.wait_for_token("c", "1")
    local_service.sql("TRUNCATE TABLE t")
    assert rest.statuses("c")["c"]["last_committed_offset_token"] == "1"
    assert local_service.sql("SELECT count(*) n FROM t") == [{"N": 0}]


def test_show_channels_lists_token_and_sequencers(local_service: LocalService, rest: Rest) -> None:
    rest.open("c")
    token = continuation(rest.open("c"))
    rest.append("c", token, _rows(1, 1), "1")
    rest.wait_for_token("c", "1")
    (row,) = local_service.sql("SHOW CHANNELS LIKE 'c' IN TABLE t")
    assert (row["name"], row["table_name"], row["parent_name"], row["parent_domain"]) == (
        "c",
        "T",
        "T-STREAMING",
        "PIPE",
    )
    assert (row["offset_token"], row["client_sequencer"], row["row_sequencer"]) == ("1", 2, 1)


# -- limits ------------------------------------------------------------------------------------------------


def test_limits_are_options_of_serve(service_factory: ServiceFactory) -> None:
    service = service_factory(
        limits="bytes-per-second=10,channels-per-pipe=2,names-per-status=1,request-bytes=100"
    )
    service.sql("CREATE TABLE t (id INT)")
    rest = Rest(service, "T")
    token = continuation(rest.open("a"))
    token = continuation(rest.append("a", token, _rows(0, 5), "5"))
    assert rest.append("a", token, _rows(6, 6), "6").status_code == 429
    assert rest.append("a", token, b" " * 101).status_code == 413
    assert rest.open("b").status_code == 200
    answer = rest.open("c")
    assert (answer.status_code, answer.json()["code"]) == (400, "ERR_TOO_MANY_CHANNELS_IN_PIPE")
    assert rest.open("a").status_code == 200
    assert rest.drop("a").status_code == 200
    assert rest.open("c").status_code == 200
    url = f"{rest._base}/{rest._pipe}:bulk-channel-status"
    assert rest.call("POST", url, rest.token, json={"channel_names": ["b", "c"]}).status_code == 400


# -- process -----------------------------------------------------------------------------------------------


def test_an_orderly_stop_commits_what_was_accepted(crash_service: LocalService) -> None:
    service = crash_service
    service.set_faults("hold-commits")
    service.sql("CREATE TABLE t (id INT)")
    rest = Rest(service, "T")
    rest.append("c", continuation(rest.open("c")), _rows(1, 5), "5")
    service.stop()
    service.restart()
    assert service.sql("SELECT count(*) n FROM t") == [{"N": 5}]
    assert Rest(service, "T").statuses("c")["c"]["last_committed_offset_token"] == "5"


def test_a_second_service_on_the_same_directory_is_refused(local_service: LocalService) -> None:
    done = local_service.cli("serve", "--port", "0")
    assert done.returncode == 1
    assert "another snowpipe-local already serves" in done.stderr


def test_a_port_in_use_is_named(service_factory: ServiceFactory, tmp_path: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        service = LocalService(tmp_path / "other")
        service.data_dir.mkdir()
        done = service.cli("serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "is in use" in done.stderr


# -- faults ------------------------------------------------------------------------------------------------


def test_the_service_prints_no_error_for_any_of_this(local_service: LocalService) -> None:
    assert "Traceback" not in local_service.log_file.read_text()
