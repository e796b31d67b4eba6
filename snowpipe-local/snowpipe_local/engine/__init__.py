"""Ingest engine: rows and offset tokens committed in one DuckDB transaction."""
