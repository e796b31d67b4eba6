"""The demo: a real Airflow and the local Snowpipe service, started, driven over REST, and stopped again."""
