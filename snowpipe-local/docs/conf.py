"""Sphinx configuration; `make docs` builds with warnings as errors."""

from importlib.metadata import version as _version

project = "snowpipe-local"
author = "The airflow-provider-snowpipe authors"
copyright = "2026, " + author
version = release = _version(project)

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nitpicky = True

autodoc_typehints = "none"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = project
html_show_sourcelink = False
linkcheck_ignore = [r"http://(localhost|127\.0\.0\.1)"]
