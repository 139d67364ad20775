"""The settings of Sphinx. `tools/docs` builds the documents.

The pages under ``generated`` folders are made of the code and of ``benchmarks`` at every build.
"""

import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import measurement_pages  # noqa: E402
import reference_pages  # noqa: E402

from torch_cudnn_ext import __version__  # noqa: E402

project = "torch_cudnn_ext"
author = "the torch_cudnn_ext contributors"
copyright = "2026, the torch_cudnn_ext contributors"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

default_role = "py:obj"
autodoc_member_order = "groupwise"
autodoc_typehints = "none"  # signatures of PyTorch's length; the docstrings name what is taken
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Shapes", "notes_style")]

html_theme = "furo"
html_title = "torch_cudnn_ext"
pygments_dark_style = "github-dark"  # does not underline names with underscores
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_copy_source = False
html_show_sourcelink = False
# Prompts and outputs are not copied.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def write_pages(app: Sphinx) -> None:
    """Writes the generated pages before Sphinx looks for pages."""
    pages = reference_pages.pages() | measurement_pages.pages()
    for name, text in pages.items():
        file = Path(app.srcdir, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file() or file.read_text() != text:  # an equal page is not built again
            file.write_text(text)


def skip_fields_of_tuples(
    app: Sphinx, what: str, name: str, value: object, skip: bool, options: object
) -> bool | None:
    """Leaves out the fields of named tuples, which Python documents by their number alone."""
    return True if str(value.__doc__).startswith("Alias for field number") else None


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-skip-member", skip_fields_of_tuples)
