"""Settings of the site; ``docs/build.py`` lays out the pages and calls Sphinx with them."""

import re
from pathlib import Path

import minifpt

project = "minifpt"
author = re.search('- name: "(.*)"', Path("CITATION.cff").read_text(encoding="utf-8"))[1]
version = release = minifpt.__version__
root_doc = "docs/index"

extensions = ["myst_nb", "sphinx.ext.mathjax"]
myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"                                 # notebooks keep their stored outputs
highlight_language = "none"
mathjax_path = "mathjax/tex-chtml.js"                     # copied beside the pages by build.py
# Headings in notebooks may jump a level, and the printed output of a cell is not source code.
suppress_warnings = ["myst.header", "misc.highlighting_failure", "mystnb.unknown_mime_type"]

html_theme = "furo"
html_title = f"minifpt {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
# Sphinx's search ends where storage is refused, as with blocked cookies: keep it in memory.
html_js_files = [(None, {"priority": 0, "body": """
try { localStorage.setItem("minifpt", ""); } catch {
  const kept = new Map();
  Object.defineProperty(window, "localStorage", {value: {getItem: k => kept.get(k) ?? null,
    setItem: (k, v) => kept.set(k, v), removeItem: k => kept.delete(k)}});
}"""})]
html_copy_source = False
html_show_search_summary = False                          # a page opened as a file cannot fetch
html_show_sphinx = False
