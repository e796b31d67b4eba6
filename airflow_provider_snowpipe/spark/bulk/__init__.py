"""The bulk path on Spark: rows and lines written as files of the size that COPY likes best."""
