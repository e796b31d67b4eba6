"""Tables and channels as Airflow assets."""
