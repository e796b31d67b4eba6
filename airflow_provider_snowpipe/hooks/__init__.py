"""Airflow connections turned into clients of the streaming service."""
