"""Sphinx configuration: ``sphinx-build -W docs build/site`` executes everything (see how-to/contribute)."""

import sys
from importlib.metadata import metadata
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

project = "pgmodels"
author = "The pgmodels authors"
copyright = "The pgmodels authors"
version = release = metadata("pgmodels")["Version"]

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["gallery/*.py", "gallery/*.ipynb", "gallery/*.json"]
templates_path = ["templates"]

# Pages
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "amsmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True
nb_output_stderr = "remove"  # notes of XLA and tqdm; a warning of the package fails the tests of the tutorials

# The reference
autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False
nitpick_ignore_regex = [(r"py:.*", r"numpyro\..*")]  # of docstrings that are inherited

# The gallery
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "within_subsection_order": "FileNameSortKey",
    "filename_pattern": r"\.py$",
    "image_scrapers": ("gallery_figures.save_figures",),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "capture_repr": ("_repr_html_", "__repr__"),
    "default_thumb_file": str(HERE / "images" / "binary_marginals.png"),
}

# The site
html_theme = "pydata_sphinx_theme"
html_title = "pgmodels"
html_show_sourcelink = False
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False, "secondary_sidebar_items": ["page-toc"]}
