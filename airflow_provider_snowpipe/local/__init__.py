"""Embedded, Snowflake-compatible Snowpipe service for development and tests (``snowpipe-local``)."""
