"""The job's file with deeds in its tasks: ``spark-submit spark_job_with_deeds.py PLAN.json``.

``DEEDS`` names a folder with ``deeds.json``, which :func:`tests.spark_deeds.deeds_of` writes.
"""

import os
import sys
from pathlib import Path

from airflow_provider_snowpipe.spark.driver.job import main
from tests.spark_deeds import doing, read_deeds

if __name__ == "__main__":
    deeds = read_deeds(Path(os.environ["DEEDS"]))
    deeds.note_driver(os.getppid(), os.getpid())  # the JVM, too
    with doing(deeds):
        sys.exit(main(sys.argv[1:]))
