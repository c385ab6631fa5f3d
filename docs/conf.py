"""How Sphinx builds the documentation: `make docs`."""

import os
import pathlib
import sys

_HERE = pathlib.Path(__file__).resolve().parent
_ROOT = str(_HERE.parent)
# This checkout's jaxbench, whichever is installed; for commands and the notebook's kernel, too.
sys.path[:0] = [str(_HERE), _ROOT]
os.environ["PYTHONPATH"] = os.pathsep.join([_ROOT, *filter(None, [os.getenv("PYTHONPATH")])])

from generate import SAMPLES, write_pages, write_samples  # noqa: E402

import jaxbench  # noqa: E402

write_pages()
write_samples()

project = "jaxbench"
version = release = jaxbench.__version__
copyright = "the jaxbench authors"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["generate.py", "sample"]
html_extra_path = [str(SAMPLES)]
# Two hyphens begin a flag; they are no dash.
smartquotes = False
html_theme = "furo"
html_title = f"jaxbench {version}"
html_copy_source = False
html_show_sourcelink = False

# Links: to files, and to headings by their text as GitHub makes anchors of it.
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
nitpicky = True
# The types in signatures: other projects' pages would have to be fetched from the network, and not
# each of ours has one.
nitpick_ignore_regex = [("py:class", ".*")]

# Google's docstrings, in which single backticks are code.
default_role = "code"
# Most blocks are commands. What they print is `text`, which nobody copies.
highlight_language = "none"
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# A signature that does not fit on a line has one parameter a line, with short types.
python_maximum_signature_line_length = 60
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False

# A notebook that comes without outputs is run, and an error in it fails the build.
nb_output_stderr = "remove"
nb_merge_streams = True
nb_execution_mode = "auto"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
