"""The documentation site: pip install -e '.[docs]' && python -m sphinx -W docs site."""

import re
from pathlib import Path

import symgraph

project = "symgraph"
author = "The symgraph developers"
version = release = symgraph.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "symgraph"
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# Links to files of the repository, which are no pages: [text](../path)
OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)]*)\)")


def name_files(app, page, source):
    """Name files outside this folder instead of linking to them; show the changelog on its page."""
    if page == "changelog":
        text = (Path(app.srcdir).parent / "CHANGELOG.md").read_text(encoding="utf-8")
        source[0] = text.replace("](docs/", "](").replace("](examples/", "](../examples/")
    source[0] = OUTSIDE.sub(lambda m: m[1] if m[2] in m[1] else f"{m[1]} (`{m[2]}`)", source[0])


def setup(app):
    """Connect what changes pages as they are read."""
    app.connect("source-read", name_files)
