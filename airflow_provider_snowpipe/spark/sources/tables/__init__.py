"""Sources that Spark itself reads: tables and queries ordered by a column, Delta and Iceberg by version."""
