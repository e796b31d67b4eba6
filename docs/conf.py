"""Sphinx configuration; `make docs` builds with warnings as errors."""

import atexit
import os
import shutil
import sys
import tempfile
from importlib.metadata import version as _version
from pathlib import Path

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

extensions = ["myst_parser", "sphinx.ext.autodoc", "generated_reference"]
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
