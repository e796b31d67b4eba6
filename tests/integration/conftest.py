"""Spark sessions for all tests of this folder."""

from tests.spark_in_process import shared_spark, spark

__all__ = ["shared_spark", "spark"]
