"""Sphinx configuration; `make docs` builds with warnings as errors."""

import atexit
import os
import shutil
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version as _version
from pathlib import Path

import requests

# Airflow needs a home before it is imported; the build leaves nothing behind.
_home = tempfile.mkdtemp(prefix="snowpipe-docs-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)
os.environ["AIRFLOW_HOME"] = _home
os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "WARNING")
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

project = "airflow-provider-snowpipe"
author = "The airflow-provider-snowpipe authors"
copyright = "2026, " + author
version = release = _version(project)

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx", "generated_reference"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nitpicky = True

# The extension writes types and defaults itself: those of the code, which the build need not resolve.
autodoc_typehints = "none"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = "Snowpipe provider for Apache Airflow"
html_show_sourcelink = False
linkcheck_ignore = [r"http://(localhost|127\.0\.0\.1)"]

# Where the documentation of others is, and where in it they describe what ours names: for a build without a
# network, and for what their own inventories lack.
_OTHERS = {
    "airflow": ("https://airflow.apache.org/docs/apache-airflow/stable/", {}),
    "airflow-sdk": (
        "https://airflow.apache.org/docs/task-sdk/stable/",
        {"airflow.sdk.BaseOperator": "api.html", "airflow.sdk.BaseSensorOperator": "api.html"},
    ),
    "airflow-spark": (
        "https://airflow.apache.org/docs/apache-airflow-providers-apache-spark/stable/",
        {
            "airflow.providers.apache.spark.operators.spark_submit.SparkSubmitOperator": (
                "_api/airflow/providers/apache/spark/operators/spark_submit/index.html"
            )
        },
    ),
    "pyspark": (
        "https://spark.apache.org/docs/latest/api/python/",
        {"pyspark.sql.DataFrame": "reference/pyspark.sql/api/pyspark.sql.DataFrame.html"},
    ),
}
_INVENTORY_SECONDS = 5.0
_HEADER = b"# Sphinx inventory version 2\n"
_LAST_LINE_OF_HEADER = b"# The remainder of this file is compressed using zlib.\n"


def _inventory(name: str) -> tuple[str, str]:
    """Where a project's documentation is, and its inventory: our lines, then its own, which count.

    Without ours Sphinx would warn where nobody answers in time, and a warning fails the build.
    """
    address, pages = _OTHERS[name]
    kinds = {one: "function" if one.rpartition(".")[2].islower() else "class" for one in pages}
    lines = "".join(f"{one} py:{kinds[one]} 1 {page}#$ -\n" for one, page in pages.items()).encode()
    try:
        answer = requests.get(f"{address}objects.inv", timeout=_INVENTORY_SECONDS).content
    except requests.RequestException:
        answer = b""
    if answer.startswith(_HEADER):
        lines += zlib.decompress(answer.partition(_LAST_LINE_OF_HEADER)[2])
    file = Path(_home, f"{name}.inv")
    file.write_bytes(
        _HEADER + f"# Project: {name}\n# Version: \n".encode() + _LAST_LINE_OF_HEADER + zlib.compress(lines)
    )
    return (address, str(file))


with ThreadPoolExecutor() as _pool:
    intersphinx_mapping = dict(zip(_OTHERS, _pool.map(_inventory, _OTHERS), strict=True))
intersphinx_disabled_reftypes = ["std:*"]  # headings and files of others are none of ours
