"""One client's whole conversation with the local service, for either generation of the connector.

Needs snowflake-connector-python, pandas and the variables of ``snowpipe-local env``. Prints the connector's
version at the end.
"""

import datetime as dt
import gzip
import json
import os
import ssl
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import snowflake.connector
from snowflake.connector.constants import QueryStatus
from snowflake.connector.pandas_tools import write_pandas

TYPES = (
    "id INT, x NUMBER(10,2), big NUMBER(38,0), wide NUMBER(38,10), s VARCHAR, n TIMESTAMP_NTZ, "
    "l TIMESTAMP_LTZ, z TIMESTAMP_TZ, d DATE, t TIME, b BOOLEAN, f FLOAT, r BINARY, v VARIANT, "
    "o OBJECT, a ARRAY"
)
VALUES = (
    "1, -2.5, 12345678901234567890123456789012345678, 1234567890123456789012345678.0123456789, 'a\u00e4', "
    "'1969-12-31 23:59:59.5'::TIMESTAMP_NTZ, '2026-01-01 00:00:01.5'::TIMESTAMP_LTZ, "
    "'2026-01-01 00:00:01.25'::TIMESTAMP_TZ, '2026-01-01'::DATE, '10:11:12.5'::TIME, TRUE, 1.5, "
    "TO_BINARY('6869', 'HEX'), PARSE_JSON('{\"a\":1}'), PARSE_JSON('{\"b\":2}'), PARSE_JSON('[3]')"
)
EXPECTED = (
    1,
    Decimal("-2.50"),
    12345678901234567890123456789012345678,
    Decimal("1234567890123456789012345678.0123456789"),
    "a\u00e4",
    dt.datetime(1969, 12, 31, 23, 59, 59, 500000),
    dt.datetime(2026, 1, 1, 0, 0, 1, 500000, dt.UTC),
    dt.datetime(2026, 1, 1, 0, 0, 1, 250000, dt.UTC),
    dt.date(2026, 1, 1),
    dt.time(10, 11, 12, 500000),
    True,
    1.5,
    b"hi",
    '{\n  "a": 1\n}',
    '{\n  "b": 2\n}',
    "[\n  3\n]",
)


_URL = os.environ["SNOWPIPE_LOCAL_URL"]
_PASSWORD_FILE = Path(os.environ["SNOWPIPE_LOCAL_PASSWORD_FILE"])
PASSWORD = {"password": _PASSWORD_FILE.read_text().strip()}
KEY = {"authenticator": "SNOWFLAKE_JWT", "private_key_file": os.environ["SNOWPIPE_LOCAL_PRIVATE_KEY_FILE"]}
PAT = {
    "authenticator": "PROGRAMMATIC_ACCESS_TOKEN",
    "token": _PASSWORD_FILE.with_name("demo_pat").read_text().strip(),
}


def connect(**credential: Any) -> Any:
    """Log in with a credential."""
    common = {
        "account": os.environ["SNOWPIPE_LOCAL_ACCOUNT"],
        "user": os.environ["SNOWPIPE_LOCAL_USER"],
        "host": "127.0.0.1",
        "port": int(_URL.rpartition(":")[2]),
        "database": "LOCAL",
        "schema": "PUBLIC",
        "login_timeout": 240,
        "network_timeout": 240,
    }
    return snowflake.connector.connect(**{**common, **credential})


def oauth() -> dict[str, str]:
    """An OAuth access token of the service's own token endpoint."""
    client = json.loads(_PASSWORD_FILE.with_name("oauth_client.json").read_text())
    form = urllib.parse.urlencode({"grant_type": "client_credentials", **client}).encode()
    call = urllib.request.Request(f"{_URL}/oauth/token-request", form)  # noqa: S310 - the service's own URL
    context = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
    with urllib.request.urlopen(call, timeout=20, context=context) as answer:  # noqa: S310
        return {"authenticator": "oauth", "token": json.load(answer)["access_token"]}


def tokens_open_sessions() -> None:
    for credential in (PAT, oauth()):
        with connect(**credential) as connection:
            row = connection.cursor().execute("SELECT CURRENT_USER(), CURRENT_ROLE()").fetchone()
            assert row == ("DEMO", "ACCOUNTADMIN"), row


def wrong_credentials_are_refused_at_once() -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for credential, reason in (
        ({"password": "wrong"}, "Incorrect username or password"),
        ({**PASSWORD, "user": "NOBODY"}, "Incorrect username or password"),
        ({"authenticator": "SNOWFLAKE_JWT", "private_key": key}, "JWT token is invalid"),
        ({**PAT, "token": "snowpipe-local-pat-wrong"}, "Programmatic access token is invalid"),
        ({"authenticator": "oauth", "token": "a.b.c"}, "Invalid OAuth access token"),
        ({**KEY, "role": "NOBODY"}, "Role 'NOBODY' specified in the connect string does not exist"),
    ):
        began = time.monotonic()
        message = refused(lambda credential=credential: connect(**credential))
        assert reason in message, message
        assert time.monotonic() - began < 120, "the client retried"


def refused(call: Callable[[], Any]) -> str:
    """Return the number and message of the error that a call must fail with."""
    try:
        call()
    except snowflake.connector.errors.Error as error:
        return f"{error.errno} {error}"
    raise AssertionError("a wrong call succeeded")


def every_type_and_its_null(cursor: Any) -> None:
    cursor.execute(f"CREATE OR REPLACE TABLE types ({TYPES})")
    cursor.execute(f"INSERT INTO types SELECT {VALUES}")
    cursor.execute("INSERT INTO types (id) VALUES (NULL)")
    for form in ("JSON", "ARROW"):
        cursor.execute(f"ALTER SESSION SET PYTHON_CONNECTOR_QUERY_RESULT_FORMAT = '{form}'")
        first, second = cursor.execute("SELECT * FROM types ORDER BY id NULLS LAST").fetchall()
        for got, expected in zip(first, EXPECTED, strict=True):
            assert got == expected, (form, got, expected)
            # Connectors return BINARY as bytes or bytearray, depending on version and result format.
            assert type(got) is type(expected) or isinstance(got, bytearray), (form, got, expected)
        assert second == (None,) * len(EXPECTED), (form, second)
    assert cursor.execute("SELECT * FROM types WHERE id = 99").fetchall() == []


def rows_as_pandas(cursor: Any) -> None:
    frame = cursor.execute(
        "SELECT id, x, s, n, l, z, d, b, f FROM types ORDER BY id NULLS LAST"
    ).fetch_pandas_all()
    assert list(frame.columns) == ["ID", "X", "S", "N", "L", "Z", "D", "B", "F"]
    assert len(frame) == 2
    assert frame["X"][0] == -2.5
    assert frame["N"][0] == EXPECTED[5]
    assert frame["L"][0] == EXPECTED[6]
    assert frame.iloc[1].isna().all(), frame.iloc[1]
    empty = cursor.execute("SELECT id, s FROM types WHERE id = 99").fetch_pandas_all()
    assert list(empty.columns) == ["ID", "S"]
    assert len(empty) == 0


def bound_values(connection: Any) -> None:
    cursor = connection.cursor()
    timestamp = dt.datetime(2026, 1, 2, 3, 4, 5, 600000)
    sent = (1, "x'y", timestamp, Decimal("1.25"), None, True, timestamp.date(), dt.time(3, 4), b"hi", 1.5)
    got = cursor.execute(f"SELECT {', '.join('?' * len(sent))}", sent).fetchone()
    assert got == sent, got
    cursor.execute("CREATE OR REPLACE TABLE binds (id INT, s VARCHAR, n TIMESTAMP_NTZ)")
    rows = [(number, f"row {number}", timestamp) for number in range(500)]
    cursor.executemany("INSERT INTO binds VALUES (?, ?, ?)", [*rows, (500, None, timestamp)])
    assert cursor.rowcount == 501, cursor.rowcount
    counted = cursor.execute("SELECT count(*), count(s), max(n) FROM binds WHERE id >= ?", (0,)).fetchone()
    assert counted == (501, 500, timestamp), counted
    cursor.execute("CREATE OR REPLACE TABLE timestamps (id INT, n TIMESTAMP_NTZ, l TIMESTAMP_LTZ, d DATE)")
    there = (timestamp, timestamp.replace(tzinfo=dt.UTC), timestamp.date())
    cursor.executemany("INSERT INTO timestamps VALUES (?, ?, ?, ?)", [(1, *there), (2, None, None, None)])
    kept = cursor.execute("SELECT n, l, d FROM timestamps ORDER BY id").fetchall()
    assert kept == [there, (None, None, None)], kept


def a_timeout_cancels_the_statement(connection: Any) -> None:
    cursor = connection.cursor()
    endless = "SELECT SUM(HASH(a.i, b.i)) FROM {0} a, {0} b".format(
        "(SELECT SEQ4() AS i FROM TABLE(GENERATOR(ROWCOUNT => 3000000)))"
    )
    began = time.monotonic()
    message = refused(lambda: cursor.execute(endless, timeout=2))
    assert "cancel" in message.lower(), message
    assert time.monotonic() - began < 60
    assert cursor.execute("SELECT 1").fetchone() == (1,)


def asynchronous_statements(connection: Any) -> None:
    cursor = connection.cursor()
    cursor.execute_async("SELECT count(*), max(s) FROM binds")
    cursor.get_results_from_sfqid(cursor.sfqid)
    assert cursor.fetchall() == [(501, "row 99")]
    query_id = cursor.sfqid
    while connection.is_still_running(connection.get_query_status(query_id)):
        time.sleep(0.05)
    assert connection.get_query_status_throw_if_error(query_id) == QueryStatus.SUCCESS
    cursor.execute_async("SELECT * FROM no_such_table")

    def fetch() -> None:
        cursor.get_results_from_sfqid(cursor.sfqid)
        cursor.fetchall()

    assert "NO_SUCH_TABLE" in refused(fetch)


def files_go_to_stages_and_come_back(cursor: Any) -> None:
    cursor.execute("CREATE OR REPLACE STAGE parcels")
    with tempfile.TemporaryDirectory(prefix="with blank ") as folder:
        local, back = Path(folder, "out"), Path(folder, "back")
        local.mkdir()
        back.mkdir()
        for name in ("a.csv", "b.csv", "it's.csv"):
            (local / name).write_text(f"1,{name}\n" * 50)
        (local / "c.csv.gz").write_bytes(gzip.compress(b"1,c\n"))
        put = f"PUT 'file://{local}/a.csv' @parcels/in"
        assert _moved(cursor, put) == [("a.csv", "a.csv.gz", "NONE", "GZIP", "UPLOADED")]
        assert [column.name for column in cursor.description] == [
            "source", "target", "source_size", "target_size", "source_compression", "target_compression",
            "status", "message",
        ]  # fmt: skip
        assert _moved(cursor, put)[0][4] == "SKIPPED"
        assert _moved(cursor, f"{put} OVERWRITE = TRUE")[0][4] == "UPLOADED"
        many = _moved(cursor, f"PUT 'file://{local}/*.csv' @parcels AUTO_COMPRESS = FALSE PARALLEL = 2")
        assert [row[1:] for row in sorted(many)] == [
            (name, "NONE", "NONE", "UPLOADED") for name in ("a.csv", "b.csv", "it's.csv")
        ]
        quoted = str(local / "it's.csv").replace("'", "\\'")
        blank = f"PUT 'file://{quoted}' '@parcels/with blank/\u00fc' AUTO_COMPRESS=FALSE"
        assert len(_moved(cursor, blank)) == 1
        packed = _moved(cursor, f"PUT 'file://{local}/c.csv.gz' @~/packed SOURCE_COMPRESSION = GZIP")
        assert packed[0][:4] == ("c.csv.gz", "c.csv.gz", "GZIP", "GZIP")
        listed = cursor.execute("LIST @parcels").fetchall()
        names = ["a.csv", "b.csv", "in/a.csv.gz", "it's.csv", "with blank/\u00fc/it's.csv"]
        assert [row[0] for row in listed] == [f"parcels/{name}" for name in names], listed
        cursor.execute(f"GET @parcels 'file://{back}/' PATTERN = '.*/?[ab][.]csv'")
        assert [column.name for column in cursor.description] == ["file", "size", "status", "message"]
        assert sorted(cursor.fetchall()) == [
            (name, (local / name).stat().st_size, "DOWNLOADED", "") for name in ("a.csv", "b.csv")
        ]
        cursor.execute(f"GET '@parcels/with blank/' 'file://{back}'")
        cursor.execute(f"GET @~/packed 'file://{back}'")
        for name in ("a.csv", "b.csv", "it's.csv", "c.csv.gz"):
            assert (back / name).read_bytes() == (local / name).read_bytes(), name
    assert len(cursor.execute("REMOVE @parcels/in").fetchall()) == 1
    cursor.execute("RM @~/packed")
    assert cursor.execute("LIST @~/packed").fetchall() == []


def frames_are_written(connection: Any) -> None:
    cursor = connection.cursor()
    columns = 'id INT, "na me" VARCHAR, x FLOAT, d TIMESTAMP_NTZ, b BOOLEAN'
    cursor.execute(f"CREATE OR REPLACE TABLE frames ({columns})")
    rows, at = 100, dt.datetime(2026, 1, 1, 0, 0, 1, 500000)
    values = [
        (number, f"it's {number}" if number % 7 else None, number / 4, at, number % 2 == 0)
        for number in range(rows)
    ]
    frame = pd.DataFrame(values, columns=["ID", "na me", "X", "D", "B"])
    for options, files in (
        ({}, 1),
        ({"chunk_size": 40, "compression": "snappy"}, 3),
        ({"chunk_size": 40, "bulk_upload_chunks": True}, 3),
    ):
        done, chunks, written, _ = write_pandas(connection, frame, "FRAMES", **options)
        assert (done, chunks, written) == (True, files, rows), options
    for overwrite in (False, True):
        assert write_pandas(connection, frame, "INFERRED", auto_create_table=True, overwrite=overwrite)[0]
    assert cursor.execute("SELECT id, d, b FROM inferred WHERE id = 3").fetchone() == (3, at, False)
    counted = cursor.execute(
        'SELECT count(*), count("na me"), sum(id), max(x), max(d), count_if(b) FROM frames'
    ).fetchone()
    assert counted == (300, 3 * 85, 3 * 4950, 24.75, at, 150), counted


def _moved(cursor: Any, statement: str) -> list[tuple[Any, ...]]:
    rows = cursor.execute(statement).fetchall()
    return [(row[0], row[1], row[4], row[5], row[6]) for row in rows]


def main() -> None:
    """Run every part."""
    wrong_credentials_are_refused_at_once()
    tokens_open_sessions()
    with connect(**KEY) as connection:
        every_type_and_its_null(connection.cursor())
        rows_as_pandas(connection.cursor())
        files_go_to_stages_and_come_back(connection.cursor())
        frames_are_written(connection)
    with connect(**PASSWORD, paramstyle="qmark") as connection:
        bound_values(connection)
        if snowflake.connector.__version__.startswith("4."):
            # Connector 5.2.0 gives up after its network time-out and cancels nothing (observed).
            a_timeout_cancels_the_statement(connection)
        asynchronous_statements(connection)
    print(snowflake.connector.__version__)


if __name__ == "__main__":
    main()
