import pytest

from airflow_provider_snowpipe.spark.connect import is_connect
from airflow_provider_snowpipe.spark.sources import open_source
from airflow_provider_snowpipe.spark.tables.spec import TableSourceSpec
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


class ConnectSession:
    """As much of a session of Spark Connect as is looked at before it is refused."""


ConnectSession.__module__ = "pyspark.sql.connect.session"


def test_session_of_spark_connect_is_told_by_its_class():
    assert is_connect(ConnectSession())
    assert not is_connect(object())


def test_source_that_needs_the_plan_of_a_query_is_refused_over_spark_connect():
    spec = TableSourceSpec(offset_column="ID", query="SELECT 1 ID", name="one")

    with pytest.raises(ConfigurationError, match="spark-submit"):
        open_source(spec, "fail").with_spark(ConnectSession)
