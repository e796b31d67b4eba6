"""The job that writes files, run in the test's own Spark session instead of a driver of its own.

Everything else of a task is as it is: its plan is a file, its report is one. Tests of many runs do not start
a JVM for each.
"""

from typing import Any

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_snowpipe.spark.driver import write_job
from airflow_provider_snowpipe.spark.driver.plan import WritePlan

Submissions = list[WritePlan]


def submit_in_process(patch: pytest.MonkeyPatch, session: Any) -> Submissions:
    """Run what is submitted in a session; the plans that were submitted, in order."""
    submitted = Submissions()

    def execute(self: SparkSubmitOperator, context: Any) -> None:
        plan = str(self.application_args[0])
        submitted.append(WritePlan.read(plan))
        assert session.getActiveSession() is not None, "the job would start and stop its own session"
        code = write_job.main([plan])
        if code != 0:
            raise AirflowException(f"the application ended with exit code {code}")

    patch.setattr(SparkSubmitOperator, "execute", execute)
    return submitted
