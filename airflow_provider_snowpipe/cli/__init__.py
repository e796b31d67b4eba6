"""``airflow snowpipe``: channels and their offset tokens from a terminal."""
