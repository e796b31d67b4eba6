"""What runs on a Spark driver and its executors: sources, the channel sink and the job.

Imports neither Airflow nor the local service. The one thing that others need from here without starting
Spark is :func:`job_file`.
"""

from __future__ import annotations

from pathlib import Path


def job_file() -> Path:
    """The application file to give to ``spark-submit``."""
    return Path(__file__).with_name("job.py")
