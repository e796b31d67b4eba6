from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.data_source.parts import BatchIdentity
from airflow_provider_snowpipe.spark.data_source.task import row_rules
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

COLUMNS = (TableColumn("ID", "NUMBER(38,0)"),)


def _options(**more):
    return WriteOptions.parse(
        {
            "accountUrl": "https://a.b.c",
            "database": "D",
            "schema": "S",
            "table": "T",
            "channelPrefix": "ds",
            "partitions": "2",
            **more,
        }
    )


def _dead(**more):
    return _options(onError="dead_letter", deadLetterPath="/dead/", **more)


def test_batch_of_a_query_puts_its_rows_into_a_directory_of_its_own():
    rules = row_rules(_dead(), COLUMNS, BatchIdentity(5, "0000abcd", 2))

    assert rules.dead_letter_path == "/dead/query=0000abcd/batch=5"
    assert rules.application == "ds query=0000abcd batch=5"


def test_offset_column_identifies_rows_over_all_batches():
    rules = row_rules(_dead(offsetColumn="ID"), COLUMNS, None)

    assert (rules.dead_letter_path, rules.application) == ("/dead", "ds by ID")


def test_check_without_a_dead_letter_path_ends_the_write_at_the_first_bad_row():
    rules = row_rules(_options(checkRows="true"), COLUMNS, BatchIdentity(5, "00000001", 2))

    assert (rules.columns, rules.dead_letter_path) == (COLUMNS, None)
