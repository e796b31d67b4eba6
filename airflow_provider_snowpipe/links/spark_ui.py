"""The link from a task to the page of its Spark application."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom

SPARK_UI_KEY = "spark_ui"


class SparkUiLink(BaseOperatorLink):
    """Where Spark shows the task's application: its own page while it runs, the history server's afterwards.

    The task leaves the address as the XCom ``spark_ui``. There is none where Spark's page is switched off
    (``spark.ui.enabled``), nor after the end where no history server is configured.
    """

    name = "Spark UI"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address that the task left, empty where there is none.

        :param operator: the operator
        :param ti_key: the task instance
        """
        found = XCom.get_value(ti_key=ti_key, key=SPARK_UI_KEY)
        return found if isinstance(found, str) else ""


def leave_address(task_instance: Any, address: str | None) -> None:
    """Leave the address of the application's page, while the task runs or at its end.

    Airflow 3 shows a link from an XCom of its own, which it writes when a task ends (Airflow 3.3.2); for a
    link that is of use while the task runs, the task writes it.

    :param task_instance: the running task instance
    :param address: the address, None for none
    """
    task_instance.xcom_push(key=SPARK_UI_KEY, value=address or "")
    own_key = getattr(SparkUiLink(), "xcom_key", None)
    if own_key is not None:
        task_instance.xcom_push(key=own_key, value=address or "")
