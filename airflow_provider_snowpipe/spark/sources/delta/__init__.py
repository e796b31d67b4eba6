"""The Delta source: the rows that each version of a table inserted."""
