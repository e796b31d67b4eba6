"""Stages and file formats through SQL, and the routes by which files come in and go out."""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from snowpipe_local.testing import LocalService


@pytest.fixture
def cursor(local_service: LocalService) -> Iterator[Any]:
    connection = _connect(local_service)
    yield connection.cursor()
    connection.close()


def _connect(service: LocalService) -> Any:
    import snowflake.connector

    return snowflake.connector.connect(
        **service.connector_arguments,
        network_timeout=240,
    )


@pytest.fixture(autouse=True)
def _trust(local_service: LocalService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(local_service.ca_file))


def _refusal(cursor: Any, statement: str) -> str:
    with pytest.raises(Exception, match=r"SQL|Unsupported|Files already") as error:
        cursor.execute(statement)
    return str(error.value)


def _rows(cursor: Any, statement: str) -> list[dict[str, Any]]:
    rows = cursor.execute(statement).fetchall()
    names = [column.name for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _put(cursor: Any, folder: Path, name: str, target: str, content: str = "1,x\n") -> None:
    (folder / name).write_text(content)
    cursor.execute(f"PUT 'file://{folder / name}' {target} AUTO_COMPRESS = FALSE OVERWRITE = TRUE")


def _instructions(service: LocalService, statement: str) -> dict[str, Any]:
    """Return what the service instructs a connector to do for PUT or GET."""
    connection = _connect(service)
    answer = connection.cmd_query(statement, 1, uuid.uuid4(), is_file_transfer=True)
    connection.close()
    assert answer["success"], answer
    data: dict[str, Any] = answer["data"]
    return data


def test_a_stage_is_created_shown_described_changed_and_dropped(cursor: Any) -> None:
    created = cursor.execute(
        "CREATE STAGE s1 FILE_FORMAT = (TYPE = JSON STRIP_OUTER_ARRAY = TRUE) COMMENT = 'it''s'"
    )
    assert created.fetchone() == ("Stage area S1 successfully created.",)
    assert "already exists" in _refusal(cursor, "CREATE STAGE s1")
    assert "already exists" in cursor.execute("CREATE STAGE IF NOT EXISTS s1").fetchone()[0]
    (shown,) = _rows(cursor, "SHOW STAGES LIKE 's1'")
    assert (shown["name"], shown["type"], shown["comment"], shown["url"]) == ("S1", "INTERNAL", "it's", "")
    described = {row["property"]: row["property_value"] for row in _rows(cursor, "DESCRIBE STAGE s1")}
    assert (described["TYPE"], described["STRIP_OUTER_ARRAY"]) == ("JSON", "true")
    cursor.execute("ALTER STAGE s1 SET FILE_FORMAT = (TYPE = CSV SKIP_HEADER = 1) COMMENT = 'c'")
    assert "cannot get a URL" in _refusal(cursor, "ALTER STAGE s1 SET URL = 's3://b/'")
    cursor.execute("ALTER STAGE s1 RENAME TO s2")
    described = {row["property"]: row["property_value"] for row in _rows(cursor, "DESC STAGE s2")}
    assert (described["TYPE"], described["SKIP_HEADER"]) == ("CSV", "1")
    assert cursor.execute("DROP STAGE s2").fetchone() == ("S2 successfully dropped.",)
    assert "does not exist" in _refusal(cursor, "DROP STAGE s2")
    assert "already dropped" in cursor.execute("DROP STAGE IF EXISTS s2").fetchone()[0]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE STAGE bad COLOUR = 'red'", "invalid parameter 'COLOUR'"),
        ("CREATE STAGE bad FILE_FORMAT = (TYPE = CSV COLOUR = 1)", "invalid parameter 'COLOUR'"),
        ("CREATE STAGE bad FILE_FORMAT = (FORMAT_NAME = no_such)", "NO_SUCH"),
        ("CREATE STAGE bad URL = 'azure://a/b'", "s3://"),
        ("CREATE STAGE bad URL = 'file:///etc'", "--allow-folder"),
        ("CREATE STAGE bad URL = 's3://b/' ENDPOINT = 's3.example.com'", "127.0.0.1"),
        ("CREATE STAGE bad URL = 's3://b/' ENDPOINT = '127.0.0.1.example.com:80'", "127.0.0.1"),
        ("CREATE STAGE bad CREDENTIALS = (AWS_KEY_ID = 'a' AWS_SECRET_KEY = 'b')", "URL"),
        ("ALTER STAGE no_such SET COMMENT = 'x'", "does not exist"),
        ("LIST @no_such", "does not exist"),
        ("LIST @%no_such", "does not exist"),
        ("PUT file:///tmp/x @~/../y", "invalid path"),
        ("PUT /tmp/x @~", "invalid local path"),
        ("PUT file:///tmp/x @~ PARALLEL = 0", "PARALLEL"),
        ("PUT file:///tmp/x @~ SOURCE_COMPRESSION = RAR", "SOURCE_COMPRESSION"),
        ("GET @~ '/tmp'", "invalid local path"),
        ("LIST @~ PATTERN = '('", "regular expression"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(cursor: Any, statement: str, message: str) -> None:
    with pytest.raises(Exception, match=r"\d{6}") as error:
        cursor.execute(statement)
    assert message in str(error.value)


def test_credentials_of_a_stage_are_never_shown(local_service: LocalService, cursor: Any) -> None:
    cursor.execute(
        "CREATE OR REPLACE STAGE s3s URL = 's3://b/p/' ENDPOINT = '127.0.0.1:9' "
        "CREDENTIALS = (AWS_KEY_ID = 'AKIA1' AWS_SECRET_KEY = 'topsecret1' AWS_TOKEN = 'topsecret2')"
    )
    shown = json.dumps(_rows(cursor, "SHOW STAGES LIKE 's3s'") + _rows(cursor, "DESC STAGE s3s"), default=str)
    assert "****" in shown
    with pytest.raises(Exception, match="stage area") as error:
        cursor.execute("LIST @s3s")
    for secret in ("AKIA1", "topsecret"):
        assert secret not in shown + str(error.value) + local_service.log_file.read_text()


def test_a_file_format_is_created_shown_described_changed_and_dropped(cursor: Any) -> None:
    cursor.execute(
        r"CREATE OR REPLACE FILE FORMAT f1 TYPE = 'CSV' FIELD_DELIMITER = '\t' NULL_IF = ('', '\\N')"
    )
    (shown,) = _rows(cursor, "SHOW FILE FORMATS LIKE 'f1'")
    assert (shown["name"], shown["type"]) == ("F1", "CSV")
    assert json.loads(shown["format_options"])["FIELD_DELIMITER"] == "\t"
    cursor.execute("ALTER FILE FORMAT f1 SET SKIP_HEADER = 2 COMMENT = 'c'")
    described = {row["property"]: row["property_value"] for row in _rows(cursor, "DESC FILE FORMAT f1")}
    assert (described["FIELD_DELIMITER"], described["SKIP_HEADER"]) == (r"\t", "2")
    assert "TYPE" in _refusal(cursor, "ALTER FILE FORMAT f1 SET TYPE = JSON")
    cursor.execute("ALTER FILE FORMAT f1 RENAME TO f2")
    cursor.execute("CREATE STAGE sf FILE_FORMAT = (FORMAT_NAME = f2)")
    cursor.execute("DROP FILE FORMAT f2")
    assert "does not exist" in _refusal(cursor, "DESCRIBE FILE FORMAT f2")
    assert "already dropped" in cursor.execute("DROP FILE FORMAT IF EXISTS f2").fetchone()[0]


def test_names_can_be_bound_as_identifiers_and_comments_are_ignored(cursor: Any) -> None:
    cursor.execute(
        "CREATE /* Python */ TEMPORARY STAGE /* 'x' */ identifier(?) -- end",
        ['"Bound"'],
        _force_qmark_paramstyle=True,
    )
    assert [row["name"] for row in _rows(cursor, "SHOW STAGES LIKE 'bound'")] == ["Bound"]
    cursor.execute("DROP STAGE IF EXISTS identifier('\"Bound\"')")
    assert _rows(cursor, "SHOW STAGES LIKE 'bound'") == []


def test_a_temporary_stage_hides_a_permanent_one_and_ends_with_its_session(
    local_service: LocalService, cursor: Any, tmp_path: Path
) -> None:
    cursor.execute("CREATE OR REPLACE STAGE both")
    other = _connect(local_service)
    mine = other.cursor()
    mine.execute("CREATE TEMPORARY STAGE both")
    _put(mine, tmp_path, "a.csv", "@both")
    folders = {path.name for path in (local_service.data_dir / "staged_files" / "files").iterdir()}
    assert len(_rows(mine, "LIST @both")) == 1
    assert _rows(cursor, "LIST @both") == []
    other.close()
    left = {path.name for path in (local_service.data_dir / "staged_files" / "files").iterdir()}
    assert len(folders - left) == 1


def test_staged_files_are_private(local_service: LocalService, cursor: Any, tmp_path: Path) -> None:
    cursor.execute("CREATE OR REPLACE STAGE modes")
    _put(cursor, tmp_path, "a.csv", "@modes/deep/er")
    root = local_service.data_dir / "staged_files"
    for path in (root, *root.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_the_sql_api_reports_that_it_moves_no_files(local_service: LocalService) -> None:
    done = local_service.cli("sql", "PUT file:///tmp/x @~")
    assert done.returncode == 1
    assert "Python connector" in done.stderr


# -- routes -------------------------------------------------------------------------------------------------


def _url(service: LocalService, data: dict[str, Any], name: str) -> str:
    return f"{service.url}/{data['stageInfo']['location']}{name}"


def _bearer(data: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {data['stageInfo']['creds']['GCS_ACCESS_TOKEN']}"}


@pytest.mark.parametrize(
    "name",
    [
        "../b",
        "%2e%2e/b",
        "..%2fb",
        "a/../../b",
        "a//b",
        "a/./b",
        "%00",
        "a%5c..%5cb",
        "a%2F..%2F..%2Fb",
        "a%2F%2Fb",
        "%ff",
        "x" * 300,
        ".",
    ],
)
def test_a_path_that_could_leave_the_stage_is_refused(
    local_service: LocalService, name: str, cursor: Any
) -> None:
    cursor.execute("CREATE STAGE IF NOT EXISTS paths")
    data = _instructions(local_service, "PUT file:///x @paths")
    # Clients tidy paths up; a raw request does not.
    head = f"PUT /{data['stageInfo']['location']}{name} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    head += f"Authorization: {_bearer(data)['Authorization']}\r\nContent-Length: 1\r\n\r\nx"
    context = ssl.create_default_context(cafile=str(local_service.ca_file))
    with (
        socket.create_connection(("127.0.0.1", local_service.port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(head.encode("latin-1"))
        answer = connection.recv(65536)
    assert answer.split()[1] in {b"400", b"403", b"404"}, answer
    assert _rows(cursor, "LIST @paths") == []


def test_a_file_where_a_folder_is_needed_is_the_clients_error(
    local_service: LocalService, cursor: Any
) -> None:
    cursor.execute("CREATE OR REPLACE STAGE clash")
    data = _instructions(local_service, "PUT file:///x @clash")
    ca = str(local_service.ca_file)
    for name, expected in (("a", 200), ("a/b", 400), ("c/d", 200), ("c", 400)):
        answer = requests.put(
            _url(local_service, data, name), data=b"y", headers=_bearer(data), verify=ca, timeout=60
        )
        assert answer.status_code == expected, (name, answer.text)


def test_a_service_folder_is_read_where_it_was_allowed(local_service: LocalService, tmp_path: Path) -> None:
    service, shared = local_service, local_service.new_folder()
    (shared / "a.csv").write_text("1\n")
    service.sql(f"CREATE STAGE outside URL = 'file://{shared}/' FILE_FORMAT = (TYPE = CSV)")
    assert [row["name"] for row in service.sql("LIST @outside")] == [f"file://{shared}/a.csv"]
    done = service.cli("sql", f"CREATE STAGE root URL = 'file://{tmp_path}/'")
    assert "--allow-folder" in done.stderr
    assert service.sql("REMOVE @outside")[0]["result"] == "removed"
    assert list(shared.iterdir()) == []


def test_a_query_is_unloaded_listed_and_downloaded(cursor: Any, tmp_path: Path) -> None:
    cursor.execute("CREATE STAGE unloaded")
    query = "SELECT $1 AS a, $2 AS b FROM VALUES (1, 'x'), (2, NULL), (3, 'a,b')"
    done = cursor.execute(f"COPY INTO @unloaded/day/ FROM ({query}) HEADER = TRUE").fetchall()
    assert [column.name for column in cursor.description] == ["rows_unloaded", "input_bytes", "output_bytes"]
    assert done[0][0] == 3
    (listed,) = _rows(cursor, "LIST @unloaded")
    assert (listed["name"], listed["size"]) == ("unloaded/day/data_0_0_0.csv.gz", done[0][2])
    cursor.execute(f"GET @unloaded/day/ 'file://{tmp_path}'")
    assert gzip.decompress((tmp_path / "data_0_0_0.csv.gz").read_bytes()) == b"A,B\n1,x\n2,\\N\n3,a\\,b\n"
    assert "Files already existing at the unload destination" in _refusal(
        cursor, f"COPY INTO @unloaded/day/ FROM ({query})"
    )
