"""Sphinx configuration; `make docs` builds with warnings as errors."""

from importlib.metadata import version as _version

project = "airflow-provider-snowpipe"
author = "The airflow-provider-snowpipe authors"
copyright = "2026, " + author
version = release = _version(project)

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
# A room of the documentation may still be empty: its glob then matches nothing, which is not an error.
suppress_warnings = ["toc.empty_glob"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nitpicky = True

html_theme = "furo"
html_title = "Snowpipe provider for Apache Airflow"
html_show_sourcelink = False
