"""The plan of a run that another operator submits, such as Livy's, Databricks', EMR's or Dataproc's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_snowpipe.hooks.storage import read_text, storage_path
from airflow_provider_snowpipe.operators.client_job import REPORT_FILE
from airflow_provider_snowpipe.operators.cluster_delivery import hadoop_address
from airflow_provider_snowpipe.operators.submission import report_of, targets_of
from airflow_provider_snowpipe.sources import stream_values
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, error_line
from airflow_provider_snowpipe.streaming.names import PipeName

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.driver.plan import JobPlan
    from airflow_provider_snowpipe.spark.source import SourceSpec


class SnowpipePlan:
    """What a job is to load, for operators that run Spark applications where this provider submits none.

    ``arguments()`` is what the job gets, and ``targets`` what a commit sensor waits for afterwards:

    .. code-block:: python

        plan = SnowpipePlan(source=FileSource(path="s3a://bucket/flights"), table="FLIGHTS", **account)
        load = LivyOperator(task_id="load", file="s3a://bucket/snowpipe_job.py", args=plan.arguments())
        load >> SnowpipeCommitSensor(task_id="committed", targets=plan.targets, table="FLIGHTS")

    Texts may be templates, where the operator that gets the arguments renders them. Neither connection nor
    account is asked while the DAG file is read; the credentials are the platform's matter.

    :param source: what to read, as ``SnowpipeStreamOperator`` takes it, but without a ``conn_id``
    :param account_url: the account's address, ``https://<host>``
    :param database: the pipe's database
    :param schema: the pipe's schema
    :param channel_prefix: first part of the channels' names, stable over runs
    :param table: load into this table through its default pipe
    :param pipe: load through this pipe; not together with ``table``
    :param source_name: second part of the channels' names, stable over runs; None for the source's own
    :param work_path: a folder of this load that the driver writes and Airflow's object storage reads, for the
        report; two runs at a time need two, such as ``s3://bucket/loads/{{ run_id }}``; None for no report
    :param credentials_variable: None for ``SNOWPIPE_CREDENTIALS``, unless ``keys`` have credentials
    :param keys: other keys of the plan, such as ``on_error`` or ``wait_for_commit``
    :raises ConfigurationError: if a value is wrong, naming its key
    """

    def __init__(
        self,
        *,
        source: SourceSpec | Mapping[str, Any],
        account_url: str,
        database: str,
        schema: str,
        channel_prefix: str,
        table: str | None = None,
        pipe: str | None = None,
        source_name: str | None = None,
        work_path: str | None = None,
        credentials_variable: str | None = None,
        **keys: Any,
    ) -> None:
        from airflow_provider_snowpipe.spark.driver.plan import PLAN_VERSION, JobPlan

        if (table is None) == (pipe is None):
            raise ConfigurationError(f"table is {table!r} and pipe {pipe!r}: give one of the two")
        name = PipeName(database, schema, pipe) if pipe else None
        name = name or PipeName.default_for_table(database, schema, str(table))
        if work_path and not (
            isinstance(work_path, str) and (work_path.startswith("/") or "://" in work_path)
        ):
            raise ConfigurationError(f"work_path is {work_path!r}: give a URL or an absolute path")
        self.work_path = work_path
        for key, value in keys.items():
            if not isinstance(value, str | int | float | list | tuple | dict | None):
                raise ConfigurationError(f"{key} is {value!r}: give a value of JSON")
        values = {
            "plan_version": PLAN_VERSION,
            "application": f"snowpipe.{channel_prefix}",
            "account_url": account_url,
            "pipe": {"database": name.database, "schema": name.schema, "pipe": name.pipe},
            "channel_prefix": channel_prefix,
            "source_name": source_name,
            "source": stream_values(source),
            "report_path": f"{hadoop_address(work_path.rstrip('/'))}/{REPORT_FILE}" if work_path else "",
            **keys,
        }
        if credentials_variable or not (keys.get("credentials_from") or keys.get("credentials_path")):
            values["credentials_variable"] = credentials_variable or "SNOWPIPE_CREDENTIALS"
        self.plan: JobPlan = JobPlan.from_json(json.dumps(values))

    def arguments(self) -> list[str]:
        """The application's arguments: the plan itself, in one line."""
        return [json.dumps(json.loads(self.plan.to_json()))]

    def targets(self, context: Mapping[str, Any], jinja_env: Any) -> dict[str, dict[str, Any]]:
        """What the last run owes on each channel, from the report that it left at ``work_path``.

        Airflow calls it when it renders the sensor's ``targets``.

        :param jinja_env: renders ``work_path``
        :raises ConfigurationError: if there is no report
        :raises AirflowException: if the run failed, in its own words
        """
        if not self.work_path:
            raise ConfigurationError(
                "the plan has no work_path, where its run would leave a report: give one"
            )
        folder = jinja_env.from_string(self.work_path).render(context).rstrip("/")
        report = report_of(read_text(storage_path(f"{folder}/{REPORT_FILE}", None)))
        if report is None:
            raise ConfigurationError(
                f"there is no {REPORT_FILE} in {folder!r}: see that the job ran, and reaches it"
            )
        if report.error is not None:
            raise AirflowException(error_line(report.error_type or "SnowpipeError", report.error))
        return targets_of(report, self.plan.offset_format, self.plan.on_error)
