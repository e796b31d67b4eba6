"""What the connectors for Python, Java and Node ask beyond plain statements."""

import json
import threading
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from snowpipe_local.limits import Limits
from tests.unit.service_in_process import Connector, ServiceInProcess

# What the clients send at login (observed with 4.8.1, 3.24.2 and 3.3.0).
PYTHON = {"CLIENT_APP_ID": "PythonConnector", "CLIENT_ENVIRONMENT": {"PYTHON_VERSION": "3.11.9"}}
# Snowpark and SQLAlchemy log in through the Python connector, under names of their own.
SNOWPARK = {"CLIENT_APP_ID": "PythonSnowpark", "CLIENT_ENVIRONMENT": {"PYTHON_VERSION": "3.11.9"}}
JDBC = {"CLIENT_APP_ID": "JDBC", "CLIENT_ENVIRONMENT": {"JAVA_VERSION": "17.0.15"}}
NODE = {"CLIENT_APP_ID": "JavaScript", "CLIENT_ENVIRONMENT": {"OS": "linux", "OCSP_MODE": "FAIL_OPEN"}}
AS_TEXT = {"PYTHON_CONNECTOR_QUERY_RESULT_FORMAT": "JSON"}
# 2026-01-01 00:00 at +02:00, and on the wall in UTC.
NANOS, OWN, WALL = "1767218400678000000", "2026-01-01 00:00:00.678", "2025-12-31 22:00:00.678"
ZONED = {"type": "TIMESTAMP_TZ", "value": f"{NANOS} 1560"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceInProcess]:
    service = ServiceInProcess(tmp_path_factory.mktemp("protocol") / "home")
    yield service
    service.close()


@pytest.fixture
def session(service: ServiceInProcess) -> Connector:
    return service.connect(**PYTHON, SESSION_PARAMETERS=AS_TEXT)


def rows(session: Connector, text: str, **body: Any) -> Any:
    answer = session.query(text, **body)
    assert answer["success"], answer["message"]
    return answer["data"]["rowset"]


def stage_file(service: ServiceInProcess, session: Connector, stage_path: str, content: bytes) -> None:
    """Put a file on a stage as JDBC does, which gets a URL for it."""
    folder, _, name = stage_path.rpartition("/")
    data = service.connect(**JDBC).query(f"PUT 'file:///x/{name}' @{folder} AUTO_COMPRESS = FALSE")["data"]
    # Its upload of what it holds in memory reads the key, and does not use it.
    assert data["encryptionMaterial"]["queryStageMasterKey"]
    url = data["stageInfo"]["presignedUrl"].partition("//")[2]
    assert service.call("PUT", "/" + url.partition("/")[2], content).status == 200


def test_values_bound_by_a_stage_are_inserted(service: ServiceInProcess, session: Connector) -> None:
    session.query("CREATE STAGE binds")
    session.query("CREATE OR REPLACE TABLE bound (a INT, b STRING, c BINARY, d DATE, e BOOLEAN)")
    lines = b'1,"x ""y"", z",0a0b,2024-02-29,true\n2,"",,1700006400000,false\n,"two\nlines",,,\n'
    stage_file(service, session, "binds/one/3.csv", lines)
    answer = session.query("INSERT INTO bound VALUES (?, ?, ?, ?, ?)", bindStage="@binds/one")
    assert answer["data"]["rowset"] == [["3"]]
    missing = session.query("INSERT INTO bound VALUES (?)", bindStage="@gone/one")
    assert (missing["success"], missing["code"]) == (False, "002003")
    read = "SELECT a, b, hex_encode(c), to_char(d), e FROM bound ORDER BY a NULLS LAST"
    assert rows(session, read) == [
        ["1", 'x "y", z', "0A0B", "2024-02-29", "1"], ["2", "", None, "2023-11-15", "0"],
        [None, "two\nlines", None, None, None],
    ]  # fmt: skip
    session.query("CREATE STAGE days")
    session.query("CREATE OR REPLACE TABLE days (d DATE)")
    # Connector 4.8.1 writes milliseconds, and nanoseconds from the year 2969 on.
    stage_file(service, session, "days/one/1.csv", b"-6930835200000\n0\n253402214400000000000\n2024-02-29\n")
    session.query("INSERT INTO days VALUES (?)", bindStage="@days/one")
    listed = rows(session, "SELECT to_char(d) FROM days ORDER BY d")
    assert listed == [["1750-05-16"], ["1970-01-01"], ["2024-02-29"], ["9999-12-31"]]


def test_waiting_generators_and_limits_of_time(session: Connector) -> None:
    [[count]] = rows(session, "SELECT count(*) FROM TABLE(GENERATOR(TIMELIMIT => 0.1))")
    assert int(count) > 0
    assert rows(session, "SELECT count(*) FROM TABLE(GENERATOR(ROWCOUNT => 3, TIMELIMIT => 60))") == [["3"]]
    assert rows(session, "SELECT count(*) FROM TABLE(GENERATOR())") == [["0"]]
    assert rows(session, "SELECT SYSTEM$WAIT(10, 'MILLISECONDS')") == [["waited 10 milliseconds"]]
    query_id = session.query("SELECT SYSTEM$WAIT(600)", asyncExec=True)["data"]["queryId"]
    cancelled = rows(session, f"SELECT SYSTEM$CANCEL_QUERY('{query_id}')")
    assert cancelled == [[f"query [{query_id}] terminated."]]
    result = session.call("GET", f"/queries/{query_id}/result")
    assert (result["code"], result["data"]["sqlState"]) == ("000604", "57014")


def test_another_session_of_the_user_cancels_everything(service, session):
    [[number]] = rows(session, "SELECT current_session()")
    answers: list[Any] = []
    text = "SELECT count(*) FROM TABLE(GENERATOR(TIMELIMIT => 600))"
    thread = threading.Thread(target=lambda: answers.append(session.query(text)))
    thread.start()
    other = service.connect(**PYTHON)
    while thread.is_alive():
        assert other.query(f"CALL SYSTEM$CANCEL_ALL_QUERIES({number})")["success"]
        thread.join(0.05)
    assert answers[0]["code"] == "000604"
    refused = other.query("CALL SYSTEM$CANCEL_ALL_QUERIES(1)")
    assert (refused["success"], refused["code"]) == (False, "000606")


def test_many_bound_rows_are_inserted_in_one_statement(session: Connector) -> None:
    session.query("CREATE OR REPLACE TABLE many (a INT, b VARCHAR(9), c TIMESTAMP_NTZ)")
    count = 20_000
    bindings = {
        "1": {"type": "FIXED", "value": [str(n) for n in range(count)]},
        "2": {"type": "TEXT", "value": [None if n % 2 else f"v{n}" for n in range(count)]},
        "3": {"type": "TIMESTAMP_NTZ", "value": [str(n * 10**9) for n in range(count)]},
    }
    assert rows(session, "INSERT INTO many VALUES (?, upper(?), ?)", bindings=bindings) == [[str(count)]]
    read = "SELECT count(*), count(b), max(b), to_char(max(c), 'YYYY-MM-DD HH24:MI:SS') FROM many"
    assert rows(session, read) == [["20000", "10000", "V9998", "1970-01-01 05:33:19"]]
    bindings["2"]["value"][7] = "longer than nine"
    refused = session.query("INSERT INTO many VALUES (?, ?, ?)", bindings=bindings)
    assert refused["code"] == "100078"
    assert rows(session, "SELECT count(*) FROM many") == [["20000"]]


def fetched(service: ServiceInProcess, data: Any) -> tuple[list[list[Any]], list[Any]]:
    """Fetch the parts of a result; return its rows, and the answers to the requests for the parts."""
    parts = [service.call("GET", _path(one["url"]), None, data["chunkHeaders"]) for one in data["chunks"]]
    if data["queryResultFormat"] == "json":
        return [*data["rowset"], *(row for one in parts for row in json.loads(b"[%b]" % one.content))], parts
    streams = [b64decode(data["rowsetBase64"]), *(one.content for one in parts)]
    table = pa.concat_tables([pa.ipc.open_stream(one).read_all() for one in streams])
    return [list(row.values()) for row in table.to_pylist()], parts


def test_a_large_result_comes_in_parts_that_need_their_key(service: ServiceInProcess) -> None:
    for client, form in [("PythonConnector", "JSON"), ("JDBC", "ARROW")]:
        formats = ("PYTHON_CONNECTOR_QUERY_RESULT_FORMAT", "JDBC_QUERY_RESULT_FORMAT")
        session = service.connect(CLIENT_APP_ID=client, SESSION_PARAMETERS=dict.fromkeys(formats, form))
        text = "SELECT seq4() AS n FROM TABLE(GENERATOR(ROWCOUNT => 101000)) ORDER BY 1"
        data = session.query(text)["data"]
        assert (data["total"], data["queryResultFormat"]) == (101_000, form.lower())
        found, _ = fetched(service, data)
        assert [int(number) for [number] in found] == list(range(101_000))
        assert [one["rowCount"] for one in data["chunks"]] == [80_000, 1_000]
    session = service.connect(**PYTHON)
    data = session.query("SELECT 1 FROM TABLE(GENERATOR(ROWCOUNT => 30000))")["data"]
    path = _path(data["chunks"][0]["url"])
    other = session.query("SELECT 2 FROM TABLE(GENERATOR(ROWCOUNT => 30000))")["data"]["chunkHeaders"]
    assert [service.call("GET", path, None, headers).status for headers in ({}, other)] == [403, 403]
    beyond = path.rpartition("/")[0] + "/1"
    assert service.call("GET", beyond, None, data["chunkHeaders"]).status == 404


def test_a_result_of_long_texts_comes_in_parts_of_few_bytes(service: ServiceInProcess) -> None:
    session = service.connect(**PYTHON)
    text = "SELECT REPEAT('x', 1000000 + seq4()) AS t, seq4() AS n FROM TABLE(GENERATOR(ROWCOUNT => 40))"
    data = session.query(text)["data"]
    found, parts = fetched(service, data)
    assert len(data["rowsetBase64"]) < 8_000_000
    assert max(len(one.content) for one in parts) < 20_000_000
    assert sorted((len(t), int(n)) for t, n in found) == [(1_000_000 + n, n) for n in range(40)]


def test_results_expire_that_take_too_much_memory_together(tmp_path: Path) -> None:
    service = ServiceInProcess(tmp_path / "home", Limits(result_bytes=5_000_000))
    session = service.connect(**PYTHON, SESSION_PARAMETERS=AS_TEXT)

    def answer(number: int, request_id: str = "") -> Any:
        return session.query(f"SELECT {number}, REPEAT('x', 2000000)", request_id)

    def stored(query_id: str) -> Any:
        return session.call("GET", f"/queries/{query_id}/result")

    made = session.query("CREATE TABLE t (a INT)")["data"]["queryId"]
    first, second, third = (answer(number, f"request-{number}")["data"]["queryId"] for number in (1, 2, 3))
    answer(4)
    for gone in (stored(first), answer(1, "request-1")):
        assert (gone["code"], gone["message"]) == ("000710", f"Result for query {first} has expired")
    assert [stored(query_id)["success"] for query_id in (second, third, made)] == [True] * 3
    sent = {"statement": "SELECT REPEAT('x', 2000000)"}
    handles = [
        service.call("POST", "/api/v2/statements", sent, token=service.jwt()).json()["statementHandle"]
        for _ in range(5)
    ]
    answers = [
        service.call("GET", f"/api/v2/statements/{handle}", token=service.jwt()).json()
        for handle in (handles[0], handles[-1])
    ]
    assert [one["code"] for one in answers] == ["000710", "090001"]
    service.close()


def _path(url: str) -> str:
    return "/" + url.removeprefix("https://").partition("/")[2]


def test_bound_values_are_read_as_their_types(session: Connector) -> None:
    for text in [
        "WITH a AS (SELECT ? AS x) SELECT x, ? FROM a WHERE x <> ?",
        "SELECT ?, b FROM (SELECT ? AS b) WHERE 'c' = ? LIMIT 1",
        "SELECT ?, ? FROM (SELECT 1) AS t JOIN (SELECT 1) AS u ON 'c' = ?",
    ]:
        bound = {str(n): {"type": "TEXT", "value": value} for n, value in enumerate("abc", start=1)}
        assert rows(session, text, bindings=bound) == [["a", "b"]]
    bound = {"low": {"type": "FIXED", "value": "2"}, "word": {"type": "TEXT", "value": "x"}}
    assert rows(session, "SELECT :word, :low, :word", bindings=bound) == [["x", "2", "x"]]
    # The translation writes this operand several times.
    bound = {"1": {"type": "TEXT", "value": "1700000000"}, "2": {"type": "FIXED", "value": "5"}}
    text = "SELECT to_char(to_timestamp(?), 'YYYY-MM-DD'), ?"
    assert rows(session, text, bindings=bound) == [["2023-11-14", "5"]]
    for kind, value in [
        ("FIXED", "1_000"), ("FIXED", "9" * 39), ("FIXED", "1e999999999"), ("REAL", "1_0"),
        ("BOOLEAN", "maybe"), ("DATE", "secret"), ("TIME", "-1"), ("TIMESTAMP_NTZ", "9" * 30),
        ("BINARY", "zz"),
    ]:  # fmt: skip
        refused = session.query("SELECT ?", bindings={"1": {"type": kind, "value": value}})
        assert (refused["code"], refused["message"]) == ("100038", f"Bind variable 1 is no {kind}.")


def test_sessions_have_transactions_and_an_information_schema(session: Connector) -> None:
    text = "SELECT current_transaction()"
    assert rows(session, text) == [[None]]
    session.query("BEGIN")
    [[number]] = rows(session, text)
    assert number.isdigit()
    assert rows(session, text) == [[number]]
    session.query("ROLLBACK")
    assert rows(session, text) == [[None]]
    assert session.query("USE SCHEMA information_schema")["data"]["finalSchemaName"] == "INFORMATION_SCHEMA"
    assert rows(session, "SELECT COUNT(*) FROM schemata WHERE schema_name = 'PUBLIC'") == [["1"]]
    for described in [False, True]:
        for text, nullable in (
            ("SELECT SEQ4(), RANDSTR(1, RANDOM()) AS b, NULL, 1 + NULL", [False, False, True, True]),
            ("SELECT *, 1 FROM VALUES (1, NULL)", [False, True, False]), ("SELECT 1, COUNT(*)", [False] * 2),
        ):  # fmt: skip
            columns = session.query(text, describeOnly=described)["data"]["rowtype"]
            assert [column["nullable"] for column in columns] == nullable
            assert "SEQ4" not in text or columns[0]["precision"] == 10


def test_an_answer_has_what_clients_read(service: ServiceInProcess, session: Connector) -> None:
    answer = session.query("ALTER SESSION SET client_prefetch_threads = 5")
    parameters = {one["name"]: one["value"] for one in answer["data"]["parameters"]}
    names = ("CLIENT_PREFETCH_THREADS", "CLIENT_RESULT_CHUNK_SIZE", "CLIENT_MEMORY_LIMIT")
    assert [parameters[name] for name in names] == [5, 160, 1536]
    assert session.query("USE DATABASE local")["data"]["statementTypeId"] == 0x4300
    states = [session.query(text)["data"]["sqlState"] for text in ("SELECT * FROM gone", "USE SCHEMA gone")]
    assert states == ["42S02", "02000"]
    own = {"python_connector_query_result_format": "arrow"}
    assert session.query("SELECT 1", parameters=own)["data"]["queryResultFormat"] == "arrow"
    assert session.query("SELECT 1")["data"]["queryResultFormat"] == "json"
    session.query("CREATE STAGE parts")
    assert session.query("PUT file:///x/a.csv @parts THRESHOLD = 156")["data"]["threshold"] == 156
    assert session.query("PUT file:///x/a.csv @parts")["data"]["threshold"] is None
    assert not session.query("PUT file:///x/a.csv @parts THRESHOLD = x")["success"]
    # 719,528 days are from 1 January of the year 0 to 1970.
    text = (
        "SELECT DATEADD(day, 1, '9999-12-31'::DATE), DATEADD(day, 1, '9999-12-31 01:02:03.5'::DATETIME), "
        "DATE_FROM_PARTS(-1, 2, 5), TIMESTAMP_FROM_PARTS(0, 1, 1, 0, 0, 1), "
        "'1969-12-31 23:59:59.75'::TIMESTAMP, X'0AFF', '01:00:00'::TIME"
    )
    before = [str(35 - 365 - 719_528), f"{1 - 719_528 * 86_400}.000000000"]
    assert rows(session, text) == [
        ["2932897", "253402304523.500000000", *before, "-0.250000000", "0AFF", "3600.000000000"]
    ]


def test_without_a_database_the_error_names_what_was_asked(service: ServiceInProcess) -> None:
    data = {"LOGIN_NAME": "DEMO", "PASSWORD": service.home.password_file.read_text().strip()}
    token = service.call("POST", "/session/v1/login-request", {"data": data}).json()["data"]["token"]
    answer = Connector(service, token).query("CREATE OR REPLACE TABLE gone (a INT)")
    assert (answer["code"], "CREATE TABLE" in answer["message"]) == ("090105", True)


def test_the_answer_counts_the_rows_that_a_statement_changed(session: Connector) -> None:
    def stats(text: str) -> Any:
        return session.query(text)["data"]["stats"]

    def counts(inserted: int, updated: int, deleted: int, twice: int = 0) -> dict[str, int]:
        names = ("numRowsInserted", "numRowsUpdated", "numRowsDeleted", "numDmlDuplicates")
        return dict(zip(names, (inserted, updated, deleted, twice), strict=True))

    statement = "CREATE OR REPLACE TABLE counted AS SELECT * FROM VALUES (1), (2), (3) AS t(a)"
    assert stats(statement) == counts(3, 0, 0)
    assert stats("INSERT INTO counted VALUES (4)") == counts(1, 0, 0)
    assert stats("UPDATE counted SET a = 5 WHERE a > 2") == counts(0, 2, 0)
    assert stats("UPDATE counted SET a = 6 WHERE a > 9") == {}
    matched = "UPDATE counted SET a = s.a FROM (SELECT * FROM VALUES (1), (1), (1), (2) AS v(a)) s"
    assert stats(f"{matched} WHERE counted.a = s.a") == counts(0, 2, 0, 2)
    assert rows(session, f"{matched} WHERE counted.a = s.a AND s.a < 3") == [["2", "1"]]
    session.query("ALTER SESSION SET ERROR_ON_NONDETERMINISTIC_UPDATE = TRUE")
    assert session.query(f"{matched} WHERE counted.a = s.a")["code"] == "100090"
    session.query("CREATE OR REPLACE TABLE others (a INT)")
    both = "INSERT OVERWRITE ALL INTO counted VALUES (b) INTO others VALUES (b) SELECT 7 AS b"
    assert stats(both) == counts(2, 0, 4)
    assert stats("TRUNCATE TABLE counted") == counts(0, 0, 1)
    assert stats("SELECT 1") is None
    assert stats("CREATE OR REPLACE TABLE uncounted (a INT)") == {}


def test_a_temporary_view_ends_with_its_session(service: ServiceInProcess, session: Connector) -> None:
    own = service.connect(**PYTHON, SESSION_PARAMETERS=AS_TEXT)
    assert own.query("CREATE OR REPLACE TEMP VIEW passing AS SELECT 7 AS a")["success"]
    assert rows(own, "SELECT a FROM passing") == [["7"]]
    own.call("POST", "/session?delete=true")
    assert session.query("SELECT a FROM passing")["code"] == "002003"


def test_a_login_names_what_exists_and_gets_the_threshold_of_its_client(service: ServiceInProcess) -> None:
    names = {"databaseName": "LOCAL", "schemaName": "PUBLIC", "warehouse": "LOCAL"}

    def login(validated: bool, **changed: str) -> Any:
        secret = service.home.password_file.read_text().strip()
        parameters = {"CLIENT_VALIDATE_DEFAULT_PARAMETERS": validated}
        data = {"LOGIN_NAME": "DEMO", "PASSWORD": secret, "SESSION_PARAMETERS": parameters}
        query = "&".join(f"{name}={value}" for name, value in (names | changed).items())
        return service.call("POST", f"/session/v1/login-request?{query}", {"data": data}).json()

    assert login(True)["success"]
    for wrong in names:
        assert login(False, **{wrong: "NEVER"})["success"]
        assert login(True, **{wrong: "NEVER"})["code"] == "390201"

    def thresholds(**client: Any) -> Any:
        parameters = {one["name"]: one["value"] for one in service.login(**client)["data"]["parameters"]}
        return parameters["CLIENT_STAGE_ARRAY_BINDING_THRESHOLD"]

    assert (thresholds(**PYTHON), thresholds()) == (65_280, 0)
    assert thresholds(**PYTHON, SESSION_PARAMETERS={"CLIENT_STAGE_ARRAY_BINDING_THRESHOLD": 7}) == 7


def test_several_statements_are_counted_with_their_values_and_run_in_the_background(session):
    values = {str(n): {"type": "FIXED", "value": str(10 * n)} for n in (1, 2, 3)}
    own = {"MULTI_STATEMENT_COUNT": 2}
    text = "SELECT ?, '?'; SELECT ? + ?"
    data = session.query(text, parameters=own, bindings=values)["data"]
    first, second = (
        session.call("GET", f"/queries/{one}/result")["data"] for one in data["resultIds"].split(",")
    )
    assert (first["rowset"], second["rowset"]) == ([["10", "?"]], [["50"]])
    del values["3"]
    assert session.query(text, parameters=own, bindings=values)["code"] == "002049"
    own = {"MULTI_STATEMENT_COUNT": 2}
    text = "SELECT 1; SELECT SYSTEM$WAIT(1, 'MILLISECONDS')"
    started = session.query(text, parameters=own, asyncExec=True)
    query_id = started["data"]["queryId"]
    assert started["code"] == "333334"
    scanned = session.query(f"select * from table(result_scan('{query_id}'))")
    assert (scanned["data"]["total"], scanned["data"].get("resultIds")) == (1, None)
    assert scanned["data"]["rowtype"][0]["name"] == "multiple statement execution"
    both = session.call("GET", f"/queries/{query_id}/result")
    first, _ = both["data"]["resultIds"].split(",")
    assert session.call("GET", f"/queries/{first}/result")["data"]["rowset"] == [["1"]]
    status = session.call("GET", f"/monitoring/queries/{query_id}")["data"]["queries"]
    assert [one["status"] for one in status] == ["SUCCESS"]
    answer = session.query("ALTER SESSION SET QUERY_TAG = 'x'; SELECT 1;")
    assert answer["code"] == "000008"
    assert answer["message"].startswith("Actual statement count 2 ")


def test_bound_formats_are_read(session: Connector) -> None:
    bound = {"1": {"type": "TIME", "value": "3600000000000"}, "2": {"type": "TEXT", "value": "HH24:MI"}}
    assert rows(session, "SELECT TO_CHAR(?, ?)", bindings=bound) == [["01:00"]]
    session.query("CREATE OR REPLACE TABLE read_each (d DATE)")
    days = {"type": "TEXT", "value": ["2026-01-31", "31/01/2026"]}
    formats = {"type": "TEXT", "value": ["YYYY-MM-DD", "DD/MM/YYYY"]}
    answer = session.query("INSERT INTO read_each VALUES (TO_DATE(?, ?))", bindings={"1": days, "2": formats})
    assert answer["data"]["rowset"] == [["2"]]
    assert answer["data"]["stats"]["numRowsInserted"] == 2
    assert rows(session, "SELECT DISTINCT to_char(d) FROM read_each") == [["2026-01-31"]]
    broken = {"1": days, "2": {"type": "TEXT", "value": ["YYYY-MM-DD"] * 2}}
    assert session.query("INSERT INTO read_each VALUES (TO_DATE(?, ?))", bindings=broken)["code"] == "100040"
    assert rows(session, "SELECT count(*) FROM read_each") == [["2"]]


def test_a_client_that_moves_no_files_cannot_put(service: ServiceInProcess, session: Connector) -> None:
    header = {"authorization": f'Snowflake Token="{session.token}"', "accept": "application/snowflake"}
    for text, code in (("PUT file:///x/a.csv @~", "000002"), ("SELECT 1", None)):
        body = {"sqlText": f"-- a comment\n{text}"}
        answer = service.call("POST", "/queries/v1/query-request?requestId=", body, header).json()
        assert answer["code"] == code
    assert session.query("PUT file:///x/a.csv @~")["success"]


def test_bound_times_have_their_type_and_become_the_one_of_the_column(service: ServiceInProcess) -> None:
    session = service.connect()
    local, clock = ({"type": kind, "value": NANOS} for kind in ("TIMESTAMP_LTZ", "TIMESTAMP_NTZ"))
    hour = {"type": "TIME", "value": "3600000000000"}
    data = session.query("SELECT ?, ?, ?", bindings={"1": ZONED, "2": local, "3": clock})["data"]
    assert [(column["type"], column["name"]) for column in data["rowtype"]] == [
        ("timestamp_tz", "?"), ("timestamp_ltz", "?"), ("timestamp_ntz", "?"),
    ]  # fmt: skip
    assert data["rowset"] == [["1767218400.678000000 1560", *["1767218400.678000000"] * 2]]
    texts = rows(
        session, "SELECT ?::VARCHAR, ?::VARCHAR, 'at ' || ?, TO_CHAR(?::DATE), ?::VARCHAR",
        bindings={"1": ZONED, "2": local, "3": clock, "4": ZONED, "5": hour},
    )  # fmt: skip
    assert texts == [[f"{OWN} +0200", f"{WALL} +0000", f"at {WALL}", "2026-01-01", "01:00:00"]]
    bound = {"1": ZONED, "2": ZONED, "3": ZONED, "4": {"type": "TIMESTAMP_NTZ", "value": NANOS}}
    rows(session, "CREATE TABLE bound_times (a TIMESTAMP_TZ, b TIMESTAMP_NTZ, c VARCHAR, d VARCHAR(30))")
    rows(session, "INSERT INTO bound_times VALUES (?, ?, ?, ?)", bindings=bound)
    rows(session, "INSERT INTO bound_times SELECT ?, ?, ?::VARCHAR, ?::VARCHAR", bindings=bound)
    several = {key: {**one, "value": [one["value"], one["value"]]} for key, one in bound.items()}
    rows(session, "INSERT INTO bound_times VALUES (?, ?, ?, ?)", bindings=several)
    kept = rows(session, "SELECT a, b::VARCHAR, c, d FROM bound_times WHERE a = ?", bindings={"1": ZONED})
    assert kept == [["1767218400.678000000 1560", OWN, f"{OWN} +0200", WALL]] * 4


def test_a_client_gets_arrow_only_if_it_reads_it(service: ServiceInProcess) -> None:
    for client, asked, form in [
        (PYTHON, {}, "arrow"), (SNOWPARK, {}, "arrow"), (JDBC, {}, "arrow"), (NODE, {}, "json"),
        (PYTHON, {"PYTHON_CONNECTOR_QUERY_RESULT_FORMAT": "JSON"}, "json"),
        (JDBC, {"JDBC_QUERY_RESULT_FORMAT": "json"}, "json"),
    ]:  # fmt: skip
        data = service.connect(**client, SESSION_PARAMETERS=asked).query("SELECT 1 AS one, 'x' AS two")[
            "data"
        ]
        assert data["queryResultFormat"] == form
        assert data.get("rowset") == ([["1", "x"]] if form == "json" else None)


def test_what_jdbc_reads_of_logins_and_counts(service: ServiceInProcess) -> None:
    def formats(answer: dict[str, Any]) -> dict[str, Any]:
        return {one["name"]: one["value"] for one in answer["data"]["parameters"]}

    # JDBC formats times itself; without these it writes "Fri, 02 Jan 2026 03:04:05 Z".
    defaults = formats(service.login(**JDBC))
    assert (defaults["DATE_OUTPUT_FORMAT"], defaults["TIME_OUTPUT_FORMAT"]) == ("YYYY-MM-DD", "HH24:MI:SS")
    kinds = ("TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP_TZ")
    assert {f"{kind}_OUTPUT_FORMAT" for kind in kinds} <= set(defaults)
    own = {"timestamp_ntz_output_format": "YYYY"}
    assert formats(service.login(**JDBC, SESSION_PARAMETERS=own))["TIMESTAMP_NTZ_OUTPUT_FORMAT"] == "YYYY"
    changed = service.connect(**JDBC).query("ALTER SESSION SET DATE_OUTPUT_FORMAT = 'DD.MM.YYYY'")
    assert formats(changed)["DATE_OUTPUT_FORMAT"] == "DD.MM.YYYY"
    connector = service.connect(**JDBC, SESSION_PARAMETERS={"MULTI_STATEMENT_COUNT": 0})
    connector.query("CREATE OR REPLACE TABLE counted (id INT)")
    bound = {"1": {"type": "FIXED", "value": "7"}}
    inserted = connector.query("INSERT INTO counted VALUES (?)", bindings=bound)
    assert inserted["success"], inserted["message"]
    assert "resultIds" not in inserted["data"]
    assert service.connect().query("SELECT id FROM counted;")["data"]["rowset"] == [["7"]]
    assert len(connector.query("SELECT 1; SELECT 2")["data"]["resultIds"].split(",")) == 2


def test_what_snowpark_writes_is_understood(service: ServiceInProcess) -> None:
    for statement, rows in [
        # DataFrame.except_, union and describe put each side in parentheses.
        ("( SELECT 1 AS a) UNION ( SELECT 2 AS a) ORDER BY a", [["1"], ["2"]]),
        ("( SELECT 1 AS a) EXCEPT ( SELECT 1 AS a)", []),
        # Session.generator and Session.range.
        ("SELECT seq1(1) FROM ( TABLE (generator(rowcount => 2) ))", [["0"], ["1"]]),
        ("SELECT a.n FROM (TABLE (GENERATOR(ROWCOUNT => 1))) AS g, (SELECT 5 AS n) AS a", [["5"]]),
        # DataFrame.sample.
        ("SELECT count(*) FROM (SELECT * FROM (SELECT 1 AS a UNION SELECT 2) SAMPLE  (1 ROWS))", [["1"]]),
        # Columns of ArrayType, MapType and VariantType in create_dataframe.
        ("SELECT CAST (parse_json(a) AS ARRAY) FROM (SELECT '[1]' AS a)", [["[\n  1\n]"]]),
        ("SELECT CAST (parse_json(a) AS OBJECT) FROM (SELECT '{\"k\": 1}' AS a)", [['{\n  "k": 1\n}']]),
        ('SELECT "$1"[\'k\'] FROM (SELECT parse_json(\'{"k": 1}\')::VARIANT AS "$1")', [["1"]]),
    ]:
        connector = service.connect()
        described = connector.query(statement, describeOnly=True)
        assert described["success"], described["message"]
        assert len(described["data"]["rowtype"]) == 1
        answer = connector.query(statement)
        assert answer["success"], answer["message"]
        assert answer["data"]["rowset"] == rows
    connector = service.connect(**SNOWPARK)
    # Snowpark's create_dataframe describes this first.
    for chosen, binds in (("$1 AS a, $2 AS b", 0), ("$1 AS a, ? AS b", 1)):
        text = f"SELECT {chosen} FROM VALUES (1 :: BIGINT, 'x' :: STRING)"
        data = connector.query(text, describeOnly=True)["data"]
        assert ([column["name"] for column in data["rowtype"]], data["numberOfBinds"]) == (["A", "B"], binds)
    bound = {"1": {"type": "TEXT", "value": "bound"}}
    assert service.connect().query(text, bindings=bound)["data"]["rowset"] == [["1", "bound"]]


def test_old_jdbc_moves_files_by_signed_urls_and_node_by_the_token(service: ServiceInProcess) -> None:
    jdbc, node = service.connect(**JDBC, CLIENT_APP_VERSION="3.21.9"), service.connect(**NODE)
    assert jdbc.query("CREATE OR REPLACE STAGE files")["success"]
    # JDBC sends PUT again for each of its files, under the name that it gets.
    data = jdbc.query("PUT 'file:///x/a b.csv.gz' @files/in AUTO_COMPRESS = FALSE")["data"]
    assert not data["stageInfo"]["creds"]
    later = service.connect(**JDBC, CLIENT_APP_VERSION="3.22.0").query("PUT 'file:///x/a' @files")["data"]
    assert later["stageInfo"]["creds"]["GCS_ACCESS_TOKEN"]
    upload = _path(data["stageInfo"]["presignedUrl"])
    assert service.call("PUT", upload, b"content").status == 200
    assert service.call("GET", upload).status == 403
    (url,) = jdbc.query("GET @files/in file:///tmp")["data"]["presignedUrls"]
    got = service.call("GET", _path(url))
    assert (got.status, got.content) == (200, b"content")
    assert service.call("GET", _path(url).partition("?")[0]).status == 401
    data = node.query("GET @files/in file:///tmp")["data"]
    assert data["presignedUrls"] == [""]
    # Connector 5.2.0 takes an empty one for a URL.
    assert service.connect(**PYTHON).query("GET @files/in file:///tmp")["data"]["presignedUrls"] is None
    assert data["stageInfo"]["creds"]["GCS_ACCESS_TOKEN"]


def test_the_sql_api_counts_the_rows_that_a_statement_changed(service: ServiceInProcess) -> None:
    def stats(statement: str) -> Any:
        sent = {"statement": statement, "database": "LOCAL", "schema": "PUBLIC"}
        return service.call("POST", "/api/v2/statements", sent, token=service.jwt()).json().get("stats")

    stats("CREATE OR REPLACE TABLE counted (a INT)")
    assert stats("INSERT INTO counted VALUES (1), (2)") == {
        "numRowsInserted": 2, "numRowsUpdated": 0, "numRowsDeleted": 0, "numDuplicateRowsUpdated": 0,
    }  # fmt: skip
    assert stats("DELETE FROM counted WHERE a > 5")["numRowsDeleted"] == 0
    assert stats("SELECT 1") is None
    # Snowflake CLI calls a REST API that the service lacks, with the token of its session.
    assert service.call("POST", "/api/v2/schemas/", b"{}").status == 404


def test_parameters_of_a_statement_hold_for_it_alone(service: ServiceInProcess) -> None:
    session = service.connect(**NODE)

    def rows(text: str, **parameters: object) -> list[list[str | None]]:
        return list(session.query(text, parameters=parameters)["data"]["rowset"])

    # What setMaxRows of JDBC becomes.
    numbers = "SELECT seq4() FROM TABLE(GENERATOR(ROWCOUNT => 5)) ORDER BY 1"
    assert rows(numbers, rows_per_resultset=2) == [["0"], ["1"]]
    assert len(rows(numbers)) == len(rows(numbers, ROWS_PER_RESULTSET=0)) == 5
    zoned = "SELECT '2026-01-01 00:00'::TIMESTAMP_LTZ::VARCHAR"
    assert rows(zoned, TIMEZONE="Asia/Kolkata") == [["2026-01-01 00:00:00.000 +0530"]]
    assert rows(zoned) == [["2026-01-01 00:00:00.000 +0000"]]
    rows("SELECT 'tagged'", QUERY_TAG="own")
    history = "SELECT query_tag FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY()) WHERE query_text LIKE "
    assert rows(history + "'SELECT%tagged%' AND query_tag <> ''") == [["own"]]
    late = session.query("SELECT SYSTEM$WAIT(60)", parameters={"STATEMENT_TIMEOUT_IN_SECONDS": 1})
    assert late["code"] == "000630"
    refused = session.query(numbers, parameters={"ROWS_PER_RESULTSET": "many"})
    assert (refused["code"], "[many]" in refused["message"]) == ("001006", True)
    assert session.query(numbers, parameters={"WEEK_START": 1})["code"] == "000002"
    rows("ALTER SESSION SET ROWS_PER_RESULTSET = 3")
    assert len(rows(numbers)) == 3


def test_a_parameter_that_the_statement_itself_sets_stays_and_is_shown(service: ServiceInProcess) -> None:
    session = service.connect(**NODE)
    session.query("ALTER SESSION SET QUERY_TAG = 'later'", parameters={"QUERY_TAG": "now"})
    shown = session.query("SHOW PARAMETERS LIKE 'QUERY%' IN SESSION")["data"]
    names = [column["name"] for column in shown["rowtype"]]
    assert names == ["key", "value", "default", "level", "description", "type"]
    (row,) = shown["rowset"]
    assert (*row[:4], row[5]) == ("QUERY_TAG", "later", "", "SESSION", "STRING")
    assert len(session.query("SHOW PARAMETERS")["data"]["rowset"]) > 30
