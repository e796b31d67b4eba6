"""What one Spark task does with the rows of one partition."""
