"""Embedded, Snowflake-compatible Snowpipe service for development and tests (``snowpipe-local``)."""

__version__ = "0.1.0"
