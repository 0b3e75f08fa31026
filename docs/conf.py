"""Sphinx's configuration. `make docs` writes the site to build/site; scripts/site/ makes what is not in this folder."""

import os

import qnn_ext

project = "qnn_ext"
author = "the qnn_ext authors"
copyright = "the qnn_ext authors"
version = release = qnn_ext.__version__

extensions = ["myst_nb", "sphinx_copybutton", "sphinx_design"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
maximum_signature_line_length = 90
add_module_names = False
toc_object_entries = False
highlight_language = "none"
smartquotes = False  # --option stays as it is

# Tutorials are executed once, and again when their code changes; QNN_EXT_DOCS_EXECUTE=0 shows them without their output
nb_execution_mode = "off" if os.environ.get("QNN_EXT_DOCS_EXECUTE") == "0" else "cache"
nb_execution_timeout = 1800
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_merge_streams = True

html_theme = "furo"
html_title = "qnn_ext"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#00695c", "color-brand-content": "#00796b"},
    "dark_css_variables": {"color-brand-primary": "#4db6ac", "color-brand-content": "#80cbc4"},
}
