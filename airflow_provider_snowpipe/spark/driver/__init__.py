"""What runs on the Spark driver: the application, its rounds of tasks, and the gate that they pass."""
