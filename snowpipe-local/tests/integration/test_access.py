"""Several users of one service, made by its --init file, each with own credentials, roles and refusals."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from snowpipe_local.testing import LocalService
from tests.contract.account import KeyPair
from tests.streaming_rest import Rest, Writer

INIT = """
CREATE ROLE loader;
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
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("declared")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "loader.p8").write_bytes(key.private_bytes(*private))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "init.sql").write_text(INIT.format(key="".join(public.decode().splitlines()[1:-1])))
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[LocalService]:
    service = LocalService(folder / "data", options=["--init", str(folder / "init.sql")])
    service.start()
    service.sql("CREATE TABLE t (id INT)")
    yield service
    service.stop()


@pytest.fixture
def key_pair(folder: Path) -> KeyPair:
    """The one of the user LOADER."""
    return KeyPair.read("LOCAL", "LOADER", (folder / "loader.p8").read_bytes())


@pytest.fixture
def loader(service: LocalService, key_pair: KeyPair) -> Callable[[str], Rest]:
    """Return a client of the user LOADER on a pipe."""
    return lambda pipe: Rest(service, pipe=pipe, key_pair=key_pair)


def _append(rest: Rest, channel: str, value: int) -> None:
    Writer(rest, channel).commit(b'{"id":%d}\n' % value, value)


def test_insert_opens_the_default_pipe_of_its_table_until_it_is_taken_away(
    service: LocalService, loader: Callable[[str], Rest]
) -> None:
    service.sql("CREATE TABLE taken (id INT)")
    service.sql("CREATE TABLE closed (id INT)")
    service.sql("REVOKE INSERT ON TABLE closed FROM ROLE loader")
    refused = loader("CLOSED-STREAMING").open("c")
    assert refused.json()["code"] == "ERR_TABLE_DOES_NOT_EXIST_NOT_AUTHORIZED"
    assert service.sql("SHOW PIPES LIKE 'CLOSED%'") == []
    writer = Writer(loader("TAKEN-STREAMING"))
    writer.commit(b'{"id":1}\n', 1)
    service.sql("REVOKE INSERT ON TABLE taken FROM ROLE loader")
    assert 400 <= writer.append(b'{"id":2}\n', 2).status_code < 500
    assert service.sql("SELECT id FROM taken") == [{"ID": 1}]


def test_a_custom_pipe_needs_operate_to_write_and_monitor_to_read_its_status(
    service: LocalService, loader: Callable[[str], Rest]
) -> None:
    stream = "(SELECT $1:id::INT FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))"
    service.sql(f"CREATE PIPE p AS COPY INTO t FROM {stream}")
    rest = loader("P")
    assert rest.bulk_status("c").json()["code"] == "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"
    service.sql("GRANT MONITOR ON PIPE p TO ROLE loader")
    assert rest.statuses("c") == {}
    assert 400 <= rest.open("c").status_code < 500
    service.sql("GRANT OPERATE ON PIPE p TO ROLE loader")
    _append(rest, "c", 5)


def test_a_jwt_chooses_one_of_the_users_roles(service: LocalService, key_pair: KeyPair) -> None:
    hidden = "ERR_TABLE_DOES_NOT_EXIST_NOT_AUTHORIZED"
    for role, status, code in (
        ("", 200, None), ("LOADER", 200, None), ("READER", 404, hidden),
        ("ACCOUNTADMIN", 403, "ROLE_NOT_GRANTED"),
    ):  # fmt: skip
        answer = Rest(service, "T").call("POST", ":pipe-info", token=key_pair.bearer(role))
        assert (answer.status_code, answer.json().get("code")) == (status, code)


def test_a_second_start_with_the_same_file_changes_nothing_and_grants_survive_a_kill(
    service: LocalService, loader: Callable[[str], Rest]
) -> None:
    service.sql("CREATE OR REPLACE TABLE kept (id INT)")
    service.sql("GRANT DELETE ON TABLE kept TO ROLE reader")
    before = json.loads((service.data_dir / "access.json").read_text())
    assert "only reads" not in json.dumps(before) + service.log_file.read_text()
    # Without --admin there is no socket.
    assert not (service.data_dir / "admin.sock").exists()
    for command in (("admin", "clock"), ("rotate-key",)):
        done = service.cli(*command)
        assert (done.returncode, "serve --admin" in done.stderr) == (1, True)
    service.kill()
    service.start()
    assert json.loads((service.data_dir / "access.json").read_text()) == before
    _append(loader("KEPT-STREAMING"), "c", 1)
