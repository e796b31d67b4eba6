"""The service of those of these tests that need no socket."""

from tests.fake_snowpipe import snowpipe

__all__ = ["snowpipe"]
