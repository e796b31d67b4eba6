"""The table source: tables and queries that Spark reads, their rows ordered by a unique, growing column."""
