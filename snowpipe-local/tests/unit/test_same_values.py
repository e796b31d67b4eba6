"""One text means the same value, or is refused, whether it comes by INSERT, COPY or a streamed row."""

import contextlib
import csv
import datetime as dt
import io
import json
from typing import Any

import pytest
from snowpipe_local.errors import SqlError
from tests.local_catalog import LocalCatalog
from tests.unit.streamed_table import MadeTable

REFUSED = "refused"


class Ways:
    """The ways of texts into a table; each returns the stored values by the number of the text."""

    def __init__(self, local: LocalCatalog, kind: str, texts: list[str]) -> None:
        self.local, self.texts = local, texts
        local.sql(f"CREATE OR REPLACE TABLE t (id INT, v {kind})")

    def stored(self) -> dict[int, Any]:
        rows = self.local.sql("SELECT id, v FROM t")
        self.local.sql("DELETE FROM t")
        return {int(row["id"]): _exact(row["v"]) for row in rows}

    def by_statement(self, statement: str, *, quoted: bool = False) -> dict[int, Any]:
        for number, text in enumerate(self.texts):
            literal = "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
            with contextlib.suppress(SqlError):
                if quoted:
                    self.local.sql(statement.format(number, literal))
                else:
                    self.local.sql(statement.format(number), text)
        return self.stored()

    def copied(self, name: str, content: str, options: str) -> dict[int, Any]:
        self.local.put(name, content.encode())
        self.local.sql(f"COPY INTO t FROM @s FILES = ('{name}') FORCE = TRUE ON_ERROR = CONTINUE {options}")
        return self.stored()

    def as_csv(self) -> dict[int, Any]:
        lines = io.StringIO()
        csv.writer(lines, quoting=csv.QUOTE_ALL).writerows(enumerate(self.texts))
        options = "(TYPE = CSV FIELD_OPTIONALLY_ENCLOSED_BY = '\"' EMPTY_FIELD_AS_NULL = FALSE)"
        return self.copied("v.csv", lines.getvalue(), f"FILE_FORMAT = {options}")

    def as_json(self) -> dict[int, Any]:
        lines = "".join(json.dumps({"id": n, "v": text}) + "\n" for n, text in enumerate(self.texts))
        options = "FILE_FORMAT = (TYPE = JSON) MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
        return self.copied("v.json", lines, options)

    def streamed(self) -> dict[int, Any]:
        rows = [json.dumps({"id": n, "v": text}).encode() for n, text in enumerate(self.texts)]
        table = MadeTable(self.local.database)
        # One commit takes the isolating path, the others the strict one as long as it succeeds.
        for sent in (rows, *([row] for row in rows)):
            table.send_at_once(*sent)
        stored = [(int(row["id"]), _exact(row["v"])) for row in self.local.sql("SELECT id, v FROM t")]
        assert sorted(map(repr, stored)) == sorted(2 * [repr(pair) for pair in dict(stored).items()])
        self.local.sql("DELETE FROM t")
        return dict(stored)


def _exact(value: Any) -> Any:
    """Two times with a zone are equal when their instants are; the offset counts, too."""
    return (value, value.utcoffset()) if isinstance(value, dt.datetime) else value


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    made = LocalCatalog(tmp_path_factory.mktemp("ways"))
    yield made
    made.close()


TIMES = [
    "2026-01-02", "2026-01-02 03:04:05", "2026-01-02T03:04:05.123456", "2026-01-02 03:04:05 +0530",
    "2026-01-02 03:04:05+05:30", "2026-01-02T03:04:05Z", "2026-01-02 03:04:05 -08:00", "1700000000",
    "1700000000000", "1700000000000000", "1700000000000000000", " 2026-01-02 03:04:05 ", "0", "-1", "",
    "2026-13-01", "2026-02-30", "x", "null", "03:04:05", "2026-01-02 25:00:00", "infinity", "epoch", "now",
    "02-Jan-2026", "01/02/2026", "01/02/2026 03:04:05", "Fri, 02 Jan 2026 03:04:05 +0200",
    "02-JAN-2026", "Fri, 02 Jan 2026 03:04:05 PM", *(NO_TIMES := [
        "infinity", "-infinity", "epoch", "2026-01-02 03:04:05 PM", "2026-01-02 03:04:05 x",
        "2026-01-02 03:04:05 Europe/Paris",
    ]),
]  # fmt: skip
TIMED = {"DATE", "TIME", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP_TZ"}
CASES = {
    "NUMBER(5,2)": [
        "1", "-1.5", "1.005", "999.99", "1000", "1e2", " 7 ", "x", "", "0x10", "true", "1_000", "NaN",
    ],
    "NUMBER(38,0)": ["12345678901234567890123456789012345678", "1.5", "-0.5", "1e40"],
    "FLOAT": ["1.5", "1e300", "NaN", "inf", "x", "", " 2 "],
    "VARCHAR(3)": ["abc", "abcd", "", " a ", "äöü"],
    "BOOLEAN": ["true", "FALSE", "yes", "No", "on", "off", "t", "f", "1", "0", "y", "x", "", " true "],
    "DATE": TIMES,
    "TIME": [
        "03:04:05", "03:04", "03:04:05.123456", "x", "", "25:00:00", "03:04:05 PM", "3:04 am",
        "03:04:05 x", "03:04:05+02:00", "epoch", "10000-01-01", "24:00:00", "24:00", "23:59:60",
    ],
    "TIMESTAMP_NTZ": TIMES,
    "TIMESTAMP_LTZ": TIMES,
    "TIMESTAMP_TZ": TIMES,
    "TIME(0)": ["03:04:05.987654", "03:04:05", "x"],
    "TIMESTAMP_NTZ(3)": ["2026-01-02 03:04:05.987654", "1969-12-31 23:59:59.999999", "x"],
    "TIMESTAMP_LTZ(0)": ["2026-01-02 03:04:05.9 +0530", "1969-12-31 23:59:59.999999", "x"],
    "TIMESTAMP_TZ(1)": ["2026-01-02 03:04:05.987654 +0530", "x"],
}  # fmt: skip


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_text_means_the_same_whichever_way_it_comes(local, step):
    for first, (kind, texts) in enumerate(CASES.items()):
        # Each type of times gets other ones of the texts that all of them have.
        every = step if texts is TIMES else 2 if step > 1 and len(texts) > 4 else 1
        texts = texts[first % every :: every]
        ways = Ways(local, kind, texts)
        local.sql("CREATE OR REPLACE TABLE texts (s VARCHAR)")
        found = {
            "COPY of CSV": ways.as_csv(), "COPY of JSON": ways.as_json(), "streamed row": ways.streamed(),
            "INSERT of a literal": ways.by_statement("INSERT INTO t VALUES ({}, {})", quoted=True),
            "INSERT of a bound text": ways.by_statement("INSERT INTO t VALUES ({}, ?)"),
            "INSERT .. SELECT of a column": ways.by_statement(
                "INSERT INTO t SELECT {}, s FROM (SELECT ? AS s)"
            ),
        }  # fmt: skip
        if not kind.startswith("VARCHAR"):
            # A cast to VARCHAR(n) cuts.
            found["cast"] = ways.by_statement(f"INSERT INTO t SELECT {{}}, CAST(? AS {kind})")
            found["cast of a literal"] = ways.by_statement(
                f"INSERT INTO t SELECT {{}}, CAST({{}} AS {kind})", quoted=True
            )
        expected = found["streamed row"]
        differing = {
            (way, texts[number]): (values.get(number, REFUSED), expected.get(number, REFUSED))
            for way, values in found.items()
            for number in range(len(texts))
            if repr(values.get(number, REFUSED)) != repr(expected.get(number, REFUSED))
        }
        # The connector binds times as text that holds epoch numbers.
        bound = {
            key for key in differing if key[0] == "INSERT of a bound text" and key[1].strip("-").isdigit()
        }
        differing = {
            key: values for key, values in differing.items() if key not in bound or kind not in TIMED
        }
        assert differing == {}
        assert 0 < len(expected) < len(texts)


def test_texts_for_binaries_and_of_varchars_have_their_lengths(local):
    ways = Ways(local, "BINARY(2)", ["CD", "cdEF", "", "C", "1e2", "zz", "é", "😀", "CDEF01"])
    found = [
        ways.as_csv(), ways.as_json(), ways.by_statement("INSERT INTO t VALUES ({}, {})", quoted=True),
        ways.by_statement("INSERT INTO t VALUES ({}, ?)"),
        ways.by_statement("INSERT INTO t SELECT {}, s FROM (SELECT ? AS s)"),
        ways.by_statement("INSERT INTO t SELECT {}, TO_BINARY(?)"),
        ways.by_statement("INSERT INTO t SELECT {}, CAST(? AS BINARY)"),
        ways.by_statement("INSERT INTO t SELECT {}, CAST({} AS BINARY)", quoted=True),
    ]  # fmt: skip
    assert found == len(found) * [{0: b"\xcd", 1: b"\xcd\xef", 2: b""}]
    assert local.refused("SELECT TO_BINARY(v) FROM (SELECT 'é' AS v)").code == "100115"
    local.sql("CREATE OR REPLACE TABLE t (v VARCHAR)")
    for length in (16_777_216, 16_777_217):
        MadeTable(local.database).send_at_once(json.dumps({"v": "x" * length}).encode())
        assert local.sql("SELECT LENGTH(v) AS n FROM t") == [{"n": 16_777_216}]


def test_no_way_stores_a_time_that_clients_cannot_read(local):
    """Snowflake does not recognize these texts; none of them may become another value either."""
    dates = ["20107-05-10", "10000-01-01", "-0001-01-01", "0000-01-01", "99999-1-1", "2024-01-01 24:00:00"]
    timestamps = ["20107-05-10 00:00:00", "10000-01-01T00:00:00Z", "2024-01-01T24:00:00", "0000-12-31 10:00"]
    for kind, texts in {
        "TIME": ["24:00:00", "24:00", "24:00:00.0", "24:59:59", "2024-01-01"], "DATE": dates + NO_TIMES,
        "TIMESTAMP_NTZ": timestamps + NO_TIMES, "TIMESTAMP_TZ": timestamps,
    }.items():  # fmt: skip
        ways = Ways(local, kind, texts)
        found = {
            "CSV": ways.as_csv(), "JSON": ways.as_json(), "stream": ways.streamed(),
            "literal": ways.by_statement("INSERT INTO t VALUES ({}, {})", quoted=True),
            "cast": ways.by_statement(f"INSERT INTO t SELECT {{}}, CAST(? AS {kind})"),
        }  # fmt: skip
        assert all(not values for values in found.values()), (kind, found)
    formatted = "FILE_FORMAT = (DATE_FORMAT = 'YYYY-MM-DD' TIMESTAMP_FORMAT = 'YYYY-MM-DD HH24:MI:SS')"
    for kind in ("DATE", "TIMESTAMP_NTZ"):
        assert Ways(local, kind, []).copied("f.csv", "1,infinity\n2,epoch\n", formatted) == {}
    # These are times.
    assert Ways(local, "TIME", ["03:04:05 PM", "12:00 AM"]).as_csv() == {0: dt.time(15, 4, 5), 1: dt.time(0)}
    afternoon = Ways(local, "TIMESTAMP_NTZ", ["Fri, 02 Jan 2026 03:04:05 PM"]).as_csv()
    assert afternoon == {0: (dt.datetime(2026, 1, 2, 15, 4, 5), None)}
