"""SQL front: owned statements as small handlers, everything else transpiled to DuckDB."""
