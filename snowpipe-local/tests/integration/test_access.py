"""Several users of one service, made by its --init file, each with own credentials, roles and refusals."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from snowpipe_local.accounts import fingerprint
from snowpipe_local.testing import LocalService
from tests.streaming_rest import ACCESS_TOKEN, Rest, Writer

INIT = """
CREATE ROLE loader COMMENT = 'writes';
CREATE ROLE reader;
GRANT ROLE loader TO ROLE sysadmin;
GRANT ROLE reader TO ROLE sysadmin;
CREATE USER loader RSA_PUBLIC_KEY = '{key}' DEFAULT_ROLE = loader DEFAULT_NAMESPACE = 'LOCAL.PUBLIC';
CREATE USER reader PASSWORD = 'only reads' DEFAULT_ROLE = reader;
GRANT ROLE loader TO USER loader;
GRANT ROLE reader TO USER loader;
GRANT ROLE reader TO USER reader;
GRANT USAGE ON DATABASE local TO ROLE loader;
GRANT USAGE, CREATE PIPE ON SCHEMA local.public TO ROLE loader;
GRANT INSERT ON FUTURE TABLES IN SCHEMA local.public TO ROLE loader;
GRANT USAGE ON DATABASE local TO ROLE reader;
GRANT ALL ON ALL SCHEMAS IN DATABASE local TO ROLE reader;
GRANT SELECT ON FUTURE TABLES IN SCHEMA local.public TO ROLE reader;
GRANT IMPORTED PRIVILEGES ON DATABASE snowflake TO ROLE reader;
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("declared")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "loader.p8").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (folder / "loader.pub").write_bytes(public)
    (folder / "init.sql").write_text(INIT.format(key="".join(public.decode().splitlines()[1:-1])))
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[LocalService]:
    service = LocalService(folder / "data", options=["--init", str(folder / "init.sql")])
    service.start()
    service.sql("CREATE TABLE t (id INT)")
    yield service
    service.stop()


@pytest.fixture(scope="module")
def pat(service: LocalService) -> str:
    [made] = service.sql("ALTER USER loader ADD PAT of_tests")
    return str(made["token_secret"])


def _jwt(folder: Path, role: str | None = None) -> str:
    """A key-pair JWT of the user LOADER."""
    now = int(time.time())
    issuer = f"LOCAL.LOADER.{fingerprint((folder / 'loader.pub').read_text())}"
    claims = {"iss": issuer, "sub": "LOCAL.LOADER", "iat": now, "exp": now + 600}
    claims |= {"scp": f"session:role:{role}"} if role else {}
    return jwt.encode(claims, (folder / "loader.p8").read_bytes(), algorithm="RS256")


def _loader(service: LocalService, folder: Path, pipe: str) -> Rest:
    """A client of the user LOADER on a pipe."""
    return Rest(service, pipe=pipe, bearer=_jwt(folder))


def _append(rest: Rest, channel: str, value: int) -> None:
    Writer(rest, channel).commit(b'{"id":%d}\n' % value, value)


def _connect(service: LocalService, **more: Any) -> Any:
    import snowflake.connector

    return snowflake.connector.connect(
        account="LOCAL", host="127.0.0.1", port=service.port, database="LOCAL", schema="PUBLIC", **more
    )


@pytest.fixture
def trusted(service: LocalService, monkeypatch: pytest.MonkeyPatch) -> LocalService:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(service.ca_file))
    return service


def test_each_user_streams_with_own_key_or_token(service: LocalService, folder: Path, pat: str) -> None:
    _append(_loader(service, folder, "T-STREAMING"), "own_0", 0)
    _append(Rest(service, "T", bearer=pat, grant=ACCESS_TOKEN), "own_1", 1)
    assert service.sql("SELECT count(*) AS n FROM t") == [{"N": 2}]


def test_insert_on_the_table_opens_its_default_pipe_and_nothing_else(
    service: LocalService, folder: Path
) -> None:
    service.sql("CREATE OR REPLACE TABLE closed (id INT)")
    service.sql("REVOKE INSERT ON TABLE closed FROM ROLE loader")
    before = service.sql("SHOW PIPES LIKE 'CLOSED%'")
    refused = _loader(service, folder, "CLOSED-STREAMING").open("c")
    assert refused.json()["code"] == "ERR_TABLE_DOES_NOT_EXIST_NOT_AUTHORIZED"
    assert service.sql("SHOW PIPES LIKE 'CLOSED%'") == before == []


def test_a_grant_that_is_taken_away_stops_a_running_writer(service: LocalService, folder: Path) -> None:
    service.sql("CREATE OR REPLACE TABLE taken (id INT)")
    writer = Writer(_loader(service, folder, "TAKEN-STREAMING"))
    writer.commit(b'{"id":1}\n', 1)
    service.sql("REVOKE INSERT ON TABLE taken FROM ROLE loader")
    assert 400 <= writer.append(b'{"id":2}\n', 2).status_code < 500
    assert service.sql("SELECT id FROM taken") == [{"ID": 1}]


def test_a_custom_pipe_needs_operate_to_write_and_monitor_to_read_its_status(
    service: LocalService, folder: Path
) -> None:
    service.sql(
        "CREATE OR REPLACE PIPE p AS COPY INTO t FROM "
        "(SELECT $1:id::INT FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))"
    )
    rest = _loader(service, folder, "P")
    assert rest.bulk_status("c").json()["code"] == "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"
    service.sql("GRANT MONITOR ON PIPE p TO ROLE loader")
    assert rest.statuses("c") == {}
    assert 400 <= rest.open("c").status_code < 500
    service.sql("GRANT OPERATE ON PIPE p TO ROLE loader")
    _append(rest, "c", 5)


def test_a_jwt_chooses_one_of_the_users_roles(service: LocalService, folder: Path) -> None:
    def hostname(role: str | None) -> requests.Response:
        return requests.post(
            f"{service.url}/v2/streaming/databases/LOCAL/schemas/PUBLIC/pipes/T-STREAMING:pipe-info",
            headers={"Authorization": f"Bearer {_jwt(folder, role)}"},
            verify=str(service.ca_file),
            timeout=30,
        )

    assert hostname(None).status_code == hostname("LOADER").status_code == 200
    assert (hostname("READER").status_code, hostname("READER").json()["code"]) == (
        404,
        "ERR_TABLE_DOES_NOT_EXIST_NOT_AUTHORIZED",
    )
    assert (hostname("ACCOUNTADMIN").status_code, hostname("ACCOUNTADMIN").json()["code"]) == (
        403,
        "ROLE_NOT_GRANTED",
    )


def test_each_user_logs_in_with_own_password_key_or_token(
    trusted: LocalService, folder: Path, pat: str
) -> None:
    from snowflake.connector.errors import DatabaseError, ProgrammingError

    with _connect(trusted, user="reader", password="only reads") as connection:
        cursor = connection.cursor()
        assert cursor.execute("SELECT CURRENT_USER(), CURRENT_ROLE()").fetchone() == ("READER", "READER")
        assert cursor.execute("SELECT count(*) FROM t").fetchone()[0] >= 0
        with pytest.raises(ProgrammingError, match="privileges") as error:
            cursor.execute("INSERT INTO t VALUES (9)")
        assert (error.value.errno, error.value.sqlstate) == (3001, "42501")
    with pytest.raises(DatabaseError, match="password"):
        _connect(trusted, user="reader", password="only writes")
    for more in (
        {"private_key_file": str(folder / "loader.p8"), "authenticator": "SNOWFLAKE_JWT"},
        {"token": pat, "authenticator": "PROGRAMMATIC_ACCESS_TOKEN"},
        {"password": pat},
    ):
        with _connect(trusted, user="LOADER", role="READER", **more) as connection:
            assert connection.role == "READER"
    with pytest.raises(DatabaseError, match="access token"):
        _connect(trusted, user="DEMO", token=pat, authenticator="PROGRAMMATIC_ACCESS_TOKEN")
    with pytest.raises(DatabaseError, match="ACCOUNTADMIN"):
        _connect(trusted, user="reader", password="only reads", role="ACCOUNTADMIN")


def test_the_sql_api_takes_every_kind_of_token_and_hides_results_of_others(
    service: LocalService, pat: str
) -> None:
    oauth = json.loads((service.data_dir / "oauth_client.json").read_text())
    answer = requests.post(
        f"{service.url}/oauth/token-request",
        data={"grant_type": "client_credentials", **oauth},
        verify=str(service.ca_file),
        timeout=30,
    )

    def call(method: str, path: str, kind: str, token: str, **more: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {token}", "X-Snowflake-Authorization-Token-Type": kind}
        url = f"{service.url}/api/v2/statements{path}"
        return requests.request(method, url, headers=headers, verify=str(service.ca_file), timeout=30, **more)

    body = {"statement": "SELECT CURRENT_USER(), CURRENT_ROLE()", "database": "LOCAL"}
    demo = call("POST", "", "OAUTH", answer.json()["access_token"], json=body)
    assert demo.json()["data"] == [["DEMO", "ACCOUNTADMIN"]]
    mine = call("POST", "", "PROGRAMMATIC_ACCESS_TOKEN", pat, json={**body, "role": "reader"})
    assert mine.json()["data"] == [["LOADER", "READER"]]
    handle = demo.json()["statementHandle"]
    assert call("GET", f"/{handle}", "PROGRAMMATIC_ACCESS_TOKEN", pat).status_code == 404
    assert call("POST", "", "OAUTH", pat, json=body).status_code == 401
    refused = call("POST", "", "PROGRAMMATIC_ACCESS_TOKEN", pat, json={**body, "role": "sysadmin"})
    assert (refused.status_code, refused.json()["code"]) == (422, "003013")


def test_a_second_start_with_the_same_file_changes_nothing_and_grants_survive_a_kill(
    service: LocalService, folder: Path, pat: str
) -> None:
    service.sql("CREATE OR REPLACE TABLE kept (id INT)")
    service.sql("GRANT DELETE ON TABLE kept TO ROLE reader")
    before = json.loads((service.data_dir / "access.json").read_text())
    assert pat not in json.dumps(before)
    assert "only reads" not in json.dumps(before) + service.log_file.read_text()
    service.kill()
    service.start()
    assert json.loads((service.data_dir / "access.json").read_text()) == before
    _append(_loader(service, folder, "KEPT-STREAMING"), "c", 1)
