"""What a Snowpark program does, against the service that the environment names.

Needs snowflake-snowpark-python with pandas and the variables of ``snowpipe-local env``. Argument: a folder
of its own. Prints the version.
"""

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from snowflake.snowpark import Row, Session, Window
from snowflake.snowpark import functions as f
from snowflake.snowpark import types as t
from snowflake.snowpark.version import VERSION

_SALES = [(1, "apple", 1.5), (2, "pear", 2.5), (3, "apple", None)]


def connect() -> Session:
    """Open a session with the key pair."""
    address = urlsplit(os.environ["SNOWPIPE_LOCAL_URL"])
    return Session.builder.configs(
        {
            "account": os.environ["SNOWPIPE_LOCAL_ACCOUNT"],
            "user": os.environ["SNOWPIPE_LOCAL_USER"],
            "host": address.hostname,
            "port": address.port,
            "authenticator": "SNOWFLAKE_JWT",
            "private_key_file": os.environ["SNOWPIPE_LOCAL_PRIVATE_KEY_FILE"],
            "database": "LOCAL",
            "schema": "PUBLIC",
        }
    ).create()


def frames(session: Session) -> None:
    """Frames of Python's values, tables, and what is asked of them."""
    made = session.create_dataframe(_SALES, schema=["id", "name", "price"])
    for mode in ("overwrite", "append", "truncate"):
        made.write.mode(mode).save_as_table("park_sales")
    sales = session.table("park_sales")
    sums = sales.group_by("name").agg(f.sum("price").alias("s"), f.count("*").alias("n")).sort("name")
    assert sums.collect() == [Row(NAME="apple", S=1.5, N=2), Row(NAME="pear", S=2.5, N=1)]
    rank = f.row_number().over(Window.partition_by("name").order_by(f.desc("id")))
    assert [row[1] for row in sales.select("id", rank).sort("id").collect()] == [2, 1, 1]
    joined = sales.join(made, sales.id == made.id, "left").select(sales.id, made.name).sort(sales.id)
    assert [row[1] for row in joined.collect()] == ["apple", "pear", "apple"]
    counts = [
        frame.count()
        for frame in (sales, made.except_(sales), made.union_all(sales), sales.sample(n=2), sales.describe())
    ]
    assert counts == [3, 0, 6, 2, 5]
    assert [row[0] for row in session.range(3).collect()] == [0, 1, 2]
    assert sales.with_column("upper", f.upper("name")).drop("price").to_pandas().shape == (3, 3)
    assert len(sales.cache_result().collect()) == len(sales.collect(block=False).result()) == 3
    assert len(list(sales.to_local_iterator())) == 3


def changes(session: Session) -> None:
    """UPDATE, DELETE and MERGE with their counts, and a transaction."""
    sales = session.table("park_sales")
    assert sales.update({"name": f.lit("plum")}, f.col("id") == 2).rows_updated == 1
    assert sales.delete(f.col("id") == 3).rows_deleted == 1
    news = session.create_dataframe([(1, "fig"), (9, "nut")], schema=["id", "name"])
    update = f.when_matched().update({"name": news.name})
    insert = f.when_not_matched().insert({"id": news.id, "name": news.name})
    merged = sales.merge(news, sales.id == news.id, [update, insert])
    assert (merged.rows_inserted, merged.rows_updated) == (1, 1)
    for statement in ("BEGIN", "DELETE FROM park_sales", "ROLLBACK"):
        session.sql(statement).collect()
    assert {row.ID: row.NAME for row in sales.collect()} == {1: "fig", 2: "plum", 9: "nut"}


def files(session: Session, folder: Path) -> None:
    """PUT, GET, COPY INTO and reading of staged files."""
    (folder / "in.csv").write_text("1,one\n2,two\n")
    session.sql("CREATE OR REPLACE STAGE park_files").collect()
    assert session.file.put(str(folder / "in.csv"), "@park_files/csv")[0].status == "UPLOADED"
    assert session.file.get("@park_files/csv", str(folder / "got"))[0].status == "DOWNLOADED"
    with (folder / "in.csv").open("rb") as stream:
        session.file.put_stream(stream, "@park_files/stream/in.csv", auto_compress=False)
    assert session.file.get_stream("@park_files/stream/in.csv").read() == b"1,one\n2,two\n"
    schema = t.StructType([t.StructField("id", t.LongType()), t.StructField("name", t.StringType())])
    staged = session.read.schema(schema).csv("@park_files/csv")
    assert sorted(map(tuple, staged.collect())) == [(1, "one"), (2, "two")]
    session.sql("DROP TABLE IF EXISTS park_copied").collect()
    assert staged.copy_into_table("park_copied")[0].rows_loaded == 2
    for kind, ending in (("csv", "csv.gz"), ("parquet", "snappy.parquet")):
        (written,) = session.table("park_copied").write.copy_into_location(
            f"@park_files/{kind}_out/", file_format_type=kind, header=True, overwrite=True
        )
        assert written.rows_unloaded == 2
        listed = session.sql(f"LIST @park_files/{kind}_out").collect()
        assert [row[0] for row in listed] == [f"park_files/{kind}_out/data_0_0_0.{ending}"]


def main() -> None:
    """Run everything; a failure ends the process."""
    session = connect()
    session.query_tag = "snowpark"
    assert session.get_current_schema() == '"PUBLIC"'
    assert session.sql("SELECT ?::INT + 1", params=[3]).collect() == [Row(4)]
    frames(session)
    changes(session)
    files(session, Path(sys.argv[1]))
    session.close()
    print(".".join(map(str, VERSION[:3])))


if __name__ == "__main__":
    main()
