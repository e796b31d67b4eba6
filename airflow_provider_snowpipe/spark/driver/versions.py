"""The versions that driver, executors and JVM must agree on, checked before a row moves.

PySpark itself refuses an executor whose Python has another minor version than the driver's;
:mod:`~airflow_provider_snowpipe.spark.driver.failures` puts that into words. It checks nothing else: with
another PySpark, or another version of this package, a task breaks somewhere in its middle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_snowpipe import __version__
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Versions:
    """What a process runs.

    :param pyspark: PySpark's version; None where it may differ, because a Connect server stands between
    :param package: this package's version
    """

    pyspark: str | None
    package: str

    @classmethod
    def here(cls) -> Self:
        """The versions of this process."""
        import pyspark

        return cls(pyspark.__version__, __version__)

    def require(self, driver: Versions) -> None:
        """Refuse to work for a driver of other versions; called in every task before it does anything.

        :param driver: the driver's versions
        :raises ConfigurationError: if a version differs
        """
        if self.pyspark and driver.pyspark and release(self.pyspark) != release(driver.pyspark):
            raise ConfigurationError(
                f"an executor runs PySpark {self.pyspark}, the driver {driver.pyspark}: submit with the "
                "cluster's version of Spark, and let PYSPARK_PYTHON name a Python without its own pyspark"
            )
        if self.package != driver.package:
            raise ConfigurationError(
                f"an executor has airflow-provider-snowpipe {self.package}, the driver {driver.package}: "
                "install the driver's version there, or none and give the package's zip file to --py-files"
            )


def require_same_spark(session: Any) -> None:
    """Refuse a JVM of another Spark release than the PySpark that drives it.

    :param session: the driver's session
    :raises ConfigurationError: if they differ
    """
    import pyspark

    if release(session.version) != release(pyspark.__version__):
        raise ConfigurationError(
            f"the driver's PySpark is {pyspark.__version__}, its JVM is Spark {session.version}: install "
            f"pyspark=={session.version}, or let SPARK_HOME lead to Spark {pyspark.__version__}. Nothing was "
            "sent"
        )


def release(version: str) -> tuple[str, ...]:
    """Major and minor number of a version, which vendors extend behind them."""
    return tuple(version.split(".")[:2])
