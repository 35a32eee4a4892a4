"""How Sphinx builds the site: `make docs` writes it to out/site. Neither the build nor the pages fetch anything.

Notebooks are shown with the outputs they were saved with; the tests execute them. Warnings are errors.
"""

import re
import sys
from pathlib import Path
from typing import Any

from sphinx.errors import ExtensionError

import relmo

sys.path.insert(0, str(Path(__file__).parent))  # docstrings.py

project, author = "relmo", "the relmo authors"
version = release = relmo.__version__
copyright = "Apache-2.0"  # noqa: A001 (Sphinx calls it so)

extensions = ["myst_nb", "sphinx.ext.autodoc", "docstrings"]
suppress_warnings = ["mystnb.unknown_mime_type"]
nitpicky = True
nitpick_ignore_regex = [("py:class", ".*")]  # types in signatures: other libraries' would need the network
default_role = "code"
highlight_language = "none"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "off"
nb_ipywidgets_js = {}  # they would come from the network

autodoc_default_options = {"members": True, "member-order": "bysource", "show-inheritance": True}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["sklearn", "spacy", "srsly", "thinc", "sentence_transformers", "huggingface_hub", "gensim"]
autodoc_mock_imports += ["onnx", "onnxruntime", "transformers"]

html_theme = "furo"
html_title = "relmo"
html_copy_source = False
html_show_sphinx = False


def nothing_from_elsewhere(app: Any, error: Exception | None) -> None:
    """Fails where a page loads a script, a style, a font or a picture from another machine."""
    pages = [] if error or app.builder.name != "html" else sorted(Path(app.outdir).rglob("*.html"))
    for page in pages:
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text(encoding="utf-8")):
            if re.search(r"""(?:src|href)=["'](?:https?:)?//""", tag):
                raise ExtensionError(f"{page.name} loads something from another machine: {tag}")


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("build-finished", nothing_from_elsewhere)
