"""The service of these tests, which need neither a process nor a JVM."""

from tests.fake_snowpipe import snowpipe

__all__ = ["snowpipe"]
