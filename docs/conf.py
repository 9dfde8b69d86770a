"""Sphinx settings: MyST pages, API pages from docstrings, warnings are errors in the build."""

import specdec

project = "specdec"
author = "the specdec authors"
copyright = author
version = release = specdec.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "specdec"
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
# Docstrings hold aligned plain text for readers of the source; it is shown as it stands.
suppress_warnings = ["docutils"]


def _verbatim(app, what, name, obj, options, lines):
    """Keep the summary as text and show what follows it as it is aligned in the source."""
    body = "\n".join(lines).strip("\n").split("\n\n", 1)
    if len(body) == 2:
        lines[:] = [body[0], "", "::", "", *("    " + line for line in body[1].splitlines()), ""]


def setup(app):
    app.connect("autodoc-process-docstring", _verbatim)
