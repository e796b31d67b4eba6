"""What this provider adds to the pages of Airflow's UI."""
