"""Where people find a running application's page, and where they find it afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pyspark import SparkContext

UI_FILE = "ui.json"
"""Beside the report: the addresses, there when Spark has started."""
_HISTORY_SETTINGS = ("spark.yarn.historyServer.address", "spark.master.ui.historyServerUrl")


@dataclass(frozen=True, slots=True)
class UiAddresses:
    """The pages of one Spark application.

    :param running: its own, None where ``spark.ui.enabled`` is false
    :param ended: the history server's, None where none is configured or no event log is written
    """

    running: str | None
    ended: str | None

    @classmethod
    def of_context(cls, spark: SparkContext) -> Self:
        """Ask a running application.

        :param spark: its context
        """
        settings = spark.getConf()
        return cls.of_settings(spark.uiWebUrl, spark.applicationId, lambda name: settings.get(name))

    @classmethod
    def of_settings(cls, own: str | None, application_id: str, setting: Callable[[str], str | None]) -> Self:
        """Find the addresses in Spark's settings ("Spark Configuration", "Spark Standalone Mode").

        :param own: what the application calls its own address, None if it has no page
        :param application_id: Spark's id
        :param setting: gives a setting's value
        """
        running = own
        proxy = setting("spark.ui.reverseProxyUrl")
        if own and proxy and _is_on(setting("spark.ui.reverseProxy")):
            running = f"{proxy.rstrip('/')}/proxy/{application_id}/"
        history = next((found for name in _HISTORY_SETTINGS if (found := setting(name))), None)
        if history is None or not _is_on(setting("spark.eventLog.enabled")):
            return cls(_shown(running), None)
        if "://" not in history:
            history = f"http://{history}"
        return cls(_shown(running), _shown(f"{history.rstrip('/')}/history/{application_id}/"))

    def to_json(self) -> str:
        """The addresses as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read the driver's file.

        :param path: the file
        :returns: None while there is none
        """
        if not path.is_file():
            return None
        values: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return cls(running=values["running"], ended=values["ended"])


def _is_on(value: str | None) -> bool:
    return (value or "").strip().lower() == "true"


def _shown(address: str | None) -> str | None:
    """Only what a browser opens; a template like ``${hadoopconf-…}`` is none."""
    return address if address and address.startswith(("http://", "https://")) and "$" not in address else None
