"""Exactly-once streaming and bulk loading of Snowflake from Apache Airflow with Apache Spark."""

__version__ = "0.1.0"
