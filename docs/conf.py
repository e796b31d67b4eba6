"""Sphinx configuration; `make docs` builds with warnings as errors."""

import atexit
import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version as _version
from pathlib import Path

import requests

# Airflow wants a home before it is imported; the build leaves nothing behind.
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

_INVENTORIES = {
    "airflow": "https://airflow.apache.org/docs/apache-airflow/stable/",
    "airflow-sdk": "https://airflow.apache.org/docs/task-sdk/stable/",
    "airflow-spark": "https://airflow.apache.org/docs/apache-airflow-providers-apache-spark/stable/",
    "pyarrow": "https://arrow.apache.org/docs/",
    "pyspark": "https://spark.apache.org/docs/latest/api/python/",
}
_INVENTORY_SECONDS = 5.0


def _inventory(name: str) -> tuple[str, str] | None:
    """Where a project's documentation is, and its inventory; None where nobody answers in time.

    Intersphinx would warn, and a warning fails the build: without a network there are no such links.
    """
    file = Path(_home, f"{name}.inv")
    try:
        content = requests.get(f"{_INVENTORIES[name]}objects.inv", timeout=_INVENTORY_SECONDS).content
    except requests.RequestException:
        return None
    file.write_bytes(content)
    return (_INVENTORIES[name], str(file)) if content.startswith(b"# Sphinx inventory") else None


with ThreadPoolExecutor() as _pool:
    _found = dict(zip(_INVENTORIES, _pool.map(_inventory, _INVENTORIES), strict=True))
intersphinx_mapping = {name: found for name, found in _found.items() if found is not None}
intersphinx_disabled_reftypes = ["std:*"]  # headings and files of others are none of ours
