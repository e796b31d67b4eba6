"""SQL by the Python connector and by the SQL API: transactions, counts, errors, the shape of answers."""

import uuid
from typing import Any

import pytest
import requests
import snowflake.connector
from tests.contract.account import Account


def submit(account: Account, statement: str, **more: Any) -> requests.Response:
    body = {"statement": statement, "database": account.database, "schema": account.schema, "timeout": 60}
    body |= {name: account.arguments[name] for name in ("warehouse", "role") if account.arguments.get(name)}
    return account.call(
        "POST", "/api/v2/statements", params={"requestId": str(uuid.uuid4())}, json={**body, **more}
    )


def test_a_result_of_the_sql_api_is_rows_of_text_with_their_types(account: Account) -> None:
    answer = submit(account, "SELECT 1 AS a, 'x' AS b, true AS c, null AS d")
    assert answer.status_code == 200, answer.text
    result = answer.json()
    assert result["code"] == "090001"
    assert result["data"] == [["1", "x", "true", None]]
    types = {column["name"]: column["type"] for column in result["resultSetMetaData"]["rowType"]}
    assert (types["A"], types["B"], types["C"]) == ("fixed", "text", "boolean")
    assert result["resultSetMetaData"]["numRows"] == 1
    assert result["statementHandle"]


def test_the_sql_api_binds_by_type_reports_wrong_statements_and_gives_each_of_several_a_handle(
    account: Account,
) -> None:
    bindings = {"1": {"type": "FIXED", "value": "123"}, "2": {"type": "TEXT", "value": "it's"}}
    assert submit(account, "SELECT ? + 1, ?", bindings=bindings).json()["data"] == [["124", "it's"]]
    answer = submit(account, "SELECT * FROM no_such_table")
    assert answer.status_code == 422
    assert (answer.json()["code"], answer.json()["sqlState"]) == ("002003", "42S02")
    assert submit(account, "SELEC 1").json()["code"] == "001003"
    answer = submit(account, "SELECT 1; SELECT 2", parameters={"MULTI_STATEMENT_COUNT": "2"})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["statementHandles"]) == 2


def test_a_failed_statement_leaves_the_transaction_open(account: Account) -> None:
    table = account.new_table("id INT")
    with account.connect() as session, session.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"INSERT INTO {table} VALUES (1)")
        with pytest.raises(snowflake.connector.errors.ProgrammingError):
            cursor.execute(f"INSERT INTO {table} VALUES ('no number')")
        cursor.execute(f"INSERT INTO {table} VALUES (2)")
        cursor.execute("COMMIT")
    assert account.count(table) == 2


def test_ddl_commits_what_was_open(account: Account) -> None:
    table = account.new_table("id INT")
    with account.connect() as session, session.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"INSERT INTO {table} VALUES (1)")
        cursor.execute(f"CREATE TABLE {table}_BESIDE (id INT)")
        cursor.execute("ROLLBACK")
    assert account.count(table) == 1


def test_statements_report_how_many_rows_they_changed(account: Account) -> None:
    table = account.new_table("id INT, s VARCHAR")
    with account.connect() as session, session.cursor() as cursor:
        assert cursor.execute(f"INSERT INTO {table} VALUES (1,'a'),(2,'b'),(3,'c')").fetchall() == [(3,)]
        assert cursor.execute(f"UPDATE {table} SET s = 'x' WHERE id > 1").fetchall() == [(2, 0)]
        assert cursor.execute(f"DELETE FROM {table} WHERE id = 3").fetchall() == [(1,)]
        merge = (
            f"MERGE INTO {table} t USING (SELECT 2 AS id UNION ALL SELECT 9) u ON t.id = u.id "
            "WHEN MATCHED THEN UPDATE SET s = 'm' WHEN NOT MATCHED THEN INSERT (id, s) VALUES (u.id, 'n')"
        )
        assert cursor.execute(merge).fetchall() == [(1, 1)]
        assert cursor.rowcount == 2


@pytest.mark.parametrize(
    ("columns", "value", "code"),
    [
        ("v VARCHAR(3)", "'long'", 100078),
        ("v NUMBER(3,0)", "1234", 100046),
        ("v INT", "'x'", 100038),
        ("v DATE", "'x'", 100040),
        ("v INT NOT NULL", "NULL", 100072),
    ],
)
def test_what_a_column_does_not_take_is_refused_with_its_code(
    account: Account, columns: str, value: str, code: int
) -> None:
    table = account.new_table(columns)
    with pytest.raises(snowflake.connector.errors.Error) as refused:
        account.rows(f"INSERT INTO {table} SELECT {value}")
    assert refused.value.errno == code


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("1/3", "0.333333"),
        ("avg(column1) from values (1),(2)", "1.500000"),
        ("object_construct('b',1,'a',null)::varchar", '{"b":1}'),
        ("split_part('a.b.c', '.', -1)", "c"),
        ("try_to_number('x')", None),
        ("dateadd(month, 1, '2026-01-31'::date)::varchar", "2026-02-28"),
        ("'2026-01-31'::date - '2026-01-01'::date", "30"),
        ("parse_json('{\"a\":[1,2]}'):a[1]::int", "2"),
    ],
)
def test_expressions_give_the_documented_values(account: Account, expression: str, shown: str | None) -> None:
    select, _, source = expression.partition(" from ")
    (row,) = account.rows(f"SELECT ({select})::varchar AS v" + (f" FROM {source}" if source else ""))
    assert row["v"] == shown
