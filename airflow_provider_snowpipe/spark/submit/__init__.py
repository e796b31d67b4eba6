"""What the submitting side needs: a job's plan and its values, and Spark on this machine."""
