import datetime as dt

import pytest
from snowpipe_local.engine.load_history import DAY_MS
from tests.local_catalog import LocalCatalog

HOUR = "DATEADD(hours, -1, CURRENT_TIMESTAMP())"


@pytest.fixture
def local(local):
    local.sql("CREATE TABLE t (id INT, name VARCHAR)")
    for name, content in (("a", b"1,x\n"), ("b", b"bad,x\n2,y\n"), ("c", b"bad,x\n")):
        local.put(f"in/{name}.csv", content)
    local.sql("COPY INTO t FROM @s/in ON_ERROR = CONTINUE")
    return local


def history(
    local: LocalCatalog, arguments: str, columns: str = "file_name, status"
) -> list[dict[str, object]]:
    return local.sql(
        f"SELECT {columns} FROM TABLE(INFORMATION_SCHEMA.COPY_HISTORY({arguments})) ORDER BY file_name"
    )


def test_copy_history_shows_every_load_with_its_first_error(local):
    rows = history(local, f"TABLE_NAME => 't', START_TIME => {HOUR}", "*")
    assert [(row["file_name"], row["status"]) for row in rows] == [
        ("a.csv", "Loaded"), ("b.csv", "Partially loaded"), ("c.csv", "Load failed"),
    ]  # fmt: skip
    expected = {
        "row_count": 1, "row_parsed": 2, "error_count": 1, "first_error_line_number": 1,
        "first_error_message": "Numeric value 'bad' is not recognized", "first_error_character_pos": 1,
        "first_error_column_name": '"T"["ID":1]', "stage_location": "LOCAL.PUBLIC.S/in", "pipe_name": None,
        "table_catalog_name": "LOCAL", "table_schema_name": "PUBLIC", "table_name": "T", "bytes_billed": None,
    }  # fmt: skip
    assert {name: rows[1][name] for name in expected} == expected
    assert isinstance(rows[1]["last_load_time"], dt.datetime)


def test_copy_history_obeys_times_pipes_and_conditions(local):
    table = "TABLE_NAME => 'LOCAL.PUBLIC.T', START_TIME"
    for arguments, count in (
        (f"{table} => {HOUR}, END_TIME => CURRENT_TIMESTAMP()", 3), ("'T', '2020-01-01'::TIMESTAMP_LTZ", 3),
        (f"{table} => DATEADD(hours, 1, CURRENT_TIMESTAMP())", 0),
        (f"{table} => {HOUR}, END_TIME => {HOUR}", 0), (f"{table} => {HOUR}, PIPE_NAME => 'p'", 0),
    ):  # fmt: skip
        assert len(history(local, arguments)) == count, arguments
    joined = local.sql(
        f"SELECT count(*) AS n FROM TABLE(INFORMATION_SCHEMA.COPY_HISTORY({table} => {HOUR})) h "
        "JOIN t ON t.id = h.row_count WHERE h.status <> 'Loaded'"
    )
    assert joined == [{"n": 1}]


def test_the_history_ends_after_14_days_and_with_the_rows(local):
    assert len(local.sql("SELECT * FROM INFORMATION_SCHEMA.LOAD_HISTORY")) == 3
    local.catalog.clock.move(15 * DAY_MS / 1000)
    assert history(local, "'t', '2020-01-01'::TIMESTAMP_LTZ") == []
    assert local.sql("SELECT * FROM local.information_schema.load_history") == []
    local.put("in/d.csv", b"4,x\n")
    local.sql("COPY INTO t FROM @s/in/d")
    assert len(history(local, "'t', '2020-01-01'::TIMESTAMP_LTZ")) == 1
    local.sql("TRUNCATE TABLE t")
    assert history(local, "'t', '2020-01-01'::TIMESTAMP_LTZ") == []
