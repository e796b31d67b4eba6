"""The Iceberg source: the rows that each snapshot of a table appended, read from its data files."""
