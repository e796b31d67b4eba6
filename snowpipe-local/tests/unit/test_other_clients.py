"""What Node's snowflake-sdk and the JDBC driver ask of the connector protocol, unlike Python's connector."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.service_in_process import ServiceInProcess

# What the clients send at login (observed with 4.8.1, 3.24.2 and 3.3.0).
PYTHON = {"CLIENT_APP_ID": "PythonConnector", "CLIENT_ENVIRONMENT": {"PYTHON_VERSION": "3.11.9"}}
# Snowpark and SQLAlchemy log in through the Python connector, under names of their own.
SNOWPARK = {"CLIENT_APP_ID": "PythonSnowpark", "CLIENT_ENVIRONMENT": {"PYTHON_VERSION": "3.11.9"}}
JDBC = {"CLIENT_APP_ID": "JDBC", "CLIENT_ENVIRONMENT": {"JAVA_VERSION": "17.0.15"}}
NODE = {"CLIENT_APP_ID": "JavaScript", "CLIENT_ENVIRONMENT": {"OS": "linux", "OCSP_MODE": "FAIL_OPEN"}}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceInProcess]:
    service = ServiceInProcess(tmp_path_factory.mktemp("clients") / "home")
    yield service
    service.close()


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


def test_objects_and_tables_have_their_columns_in_snowflakes_order(service: ServiceInProcess) -> None:
    connector = service.connect(**NODE)
    for statement in (
        "CREATE OR REPLACE SCHEMA shown", "CREATE TABLE shown.t (id INT) ERROR_LOGGING = TRUE",
        "COMMENT ON TABLE shown.t IS 'it'", "CREATE VIEW shown.v AS SELECT id FROM shown.t",
    ):  # fmt: skip
        assert connector.query(statement)["success"]
    # JDBC's getTables reads columns 2 to 6 by position.
    rows = connector.query("SHOW OBJECTS IN SCHEMA shown")["data"]["rowset"]
    assert sorted(row[1:6] for row in rows) == [
        ["T", "LOCAL", "SHOWN", "TABLE", "it"], ["V", "LOCAL", "SHOWN", "VIEW", ""],
    ]  # fmt: skip
    assert all(float(row[0]) > 0 for row in rows)
    data = connector.query("SHOW TABLES IN SCHEMA shown")["data"]
    names = [column["name"] for column in data["rowtype"]]
    assert dict(zip(names, data["rowset"][0], strict=True))["error_logging"] == "Y"


def test_jdbc_moves_files_by_signed_urls_and_node_by_the_token(service: ServiceInProcess) -> None:
    jdbc, node = service.connect(**JDBC), service.connect(**NODE)
    assert jdbc.query("CREATE OR REPLACE STAGE files")["success"]
    # JDBC sends PUT again for each of its files, under the name that it gets.
    data = jdbc.query("PUT 'file:///x/a b.csv.gz' @files/in AUTO_COMPRESS = FALSE")["data"]
    assert not data["stageInfo"]["creds"]
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


def _path(url: str) -> str:
    return "/" + url.partition("://")[2].partition("/")[2]


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
