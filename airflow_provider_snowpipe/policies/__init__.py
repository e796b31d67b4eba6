"""What Airflow does when a task of this provider fails."""
