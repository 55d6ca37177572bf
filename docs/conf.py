"""Sphinx configuration: Markdown by MyST, the API from numpydoc docstrings."""

import os
from importlib.metadata import version as installed_version
from importlib.util import find_spec

project = "gradwire"
author = "the gradwire authors"
copyright = "2026, the gradwire authors"
version = release = installed_version("gradwire")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
# Types in the API link to these pages. Their inventories need a network, so only hosted builds do.
if os.environ.get("READTHEDOCS") == "True":
    extensions.append("sphinx.ext.intersphinx")
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "torch": ("https://docs.pytorch.org/docs/stable", None),
}
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
# Fences in guides may elide with an ellipsis; several classes have a `rank` or an `Exchange`.
suppress_warnings = ["misc.highlighting_failure", "ref.python"]

# Horovod has to be built, which not every machine can; the pages do not depend on it.
autodoc_mock_imports = [] if find_spec("horovod") else ["horovod"]
default_role = "py:obj"  # names in docstrings become links where there is such a thing
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = False
# Fields and methods are documented once, where autodoc finds them.
napoleon_use_ivar = True

html_theme = "furo"
html_title = "gradwire"
html_static_path = ["_static"]
html_css_files = ["theme.css"]
copybutton_prompt_text = r">>> |\.\.\. |\w[\w-]*\$ "
copybutton_prompt_is_regexp = True
exclude_patterns = ["_build"]
nitpicky = False
