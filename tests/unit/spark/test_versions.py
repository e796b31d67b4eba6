from types import SimpleNamespace

import pyspark
import pytest

from airflow_provider_snowpipe.spark.driver.session import require_same_spark
from airflow_provider_snowpipe.spark.task.work import Versions
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


@pytest.mark.parametrize(
    ("executor", "message"),
    [
        (Versions("4.1.2", "1.0"), "an executor runs PySpark 4.1.2, the driver 4.2.0"),
        (Versions("4.2.0", "0.9"), "an executor has airflow-provider-snowpipe 0.9, the driver 1.0"),
    ],
)
def test_executor_of_another_version_is_refused_with_both(executor, message):
    with pytest.raises(ConfigurationError, match=message):
        executor.require(Versions("4.2.0", "1.0"))


def test_patch_releases_and_what_vendors_append_are_fine():
    Versions("4.2.1.vendor3", "1.0").require(Versions("4.2.0", "1.0"))
    require_same_spark(SimpleNamespace(version=f"{pyspark.__version__}-vendor"))


def test_jvm_of_another_release_is_refused_with_the_remedy():
    with pytest.raises(ConfigurationError, match=r"pyspark==3\.5\.1"):
        require_same_spark(SimpleNamespace(version="3.5.1"))
