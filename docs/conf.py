"""The settings of Sphinx: ``sphinx-build -W --keep-going -b html docs OUT`` builds the site, without any network."""

import shlex
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]  # the reference is that of this checkout

from urifilter_redis import __version__  # noqa: E402 - of the checkout

project = "urifilter-redis"
release = __version__
copyright = "the urifilter-redis contributors"  # noqa: A001 - Sphinx calls it so

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinxcontrib.mermaid",
    "from_code",
    "whole_site",
]
exclude_patterns = ["_ext"]

myst_heading_anchors = 4  # the fragments of headings are those of hosting sites, so links work on both

myst_fence_as_directive = ["mermaid"]  # hosting sites draw such blocks themselves
mermaid_cmd = shlex.join([sys.executable, "-m", "mermaidx"])
mermaid_output_format = "svg"  # drawn now, so that a reader's browser asks no other site for a script

autodoc_member_order = "bysource"
napoleon_use_ivar = True  # attributes of a class are a list, as arguments are
python_use_unqualified_type_names = True  # "Timeouts" instead of the module's name and it
python_maximum_signature_line_length = 100  # a longer one has a line for each argument

smartquotes_action = "D"  # dashes only: quotes in text may be typed as they stand

copybutton_prompt_text = "$ "  # of console: commands are copied without it, and without their output
copybutton_line_continuation_character = "\\"

html_theme = "furo"
html_title = "urifilter-redis"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
templates_path = []
