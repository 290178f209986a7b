"""How the documentation is built: `make docs` writes docs/_build, and warnings are errors.

The pages are Markdown. The reference in docs/api has a page for each room of the package, written
here from its docstrings, which are Markdown too: `code` and $math$. A browser without a network
shows formulas as TeX.
"""

import re
import sys
from importlib.metadata import version as version_of
from inspect import getdoc
from operator import attrgetter
from pathlib import Path
from typing import Any

from docutils.nodes import Text, document, literal_block
from sphinx.addnodes import toctree
from sphinx.application import Sphinx

import vlmtune

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
PACKAGE = HERE.parent / "vlmtune"
# Their tables are wide and need the room of both sidebars.
WIDE = [f"results/{page.stem}" for page in sorted((HERE / "results").glob("*.md"))]
# What most programs need; the reference begins with these.
PUBLIC = """
load model.Model search.build_index search.Index export.save_export
data.ShardSet data.ShardDataModule training.AdaptationModule training.BenchmarkCallback
backbones.Backbone adapters.Adapter objectives.Objective pairs.PairPolicy
benchmarks.Benchmark evaluation.run_suite results.Result results.MetricValue report.RunReport
types.Batch types.Scores types.Targets errors.UserError
"""

project = "vlmtune"
release = version_of("vlmtune")
extensions = ["myst_parser", "notebook_pages", "sphinx_copybutton"]
extensions += ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
myst_enable_extensions = ["attrs_block"]
autodoc_default_options = {"members": True, "ignore-module-all": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_use_type_comments = False  # there are none, and looking for them takes seconds
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
add_module_names = False
copybutton_exclude = ".gp, .go"  # prompts and output
html_title = "vlmtune"
html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
templates_path = ["_templates"]
html_theme_options = {
    "navbar_center": ["sections"],
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": {"**": ["page-toc"], **{name: [] for name in ["matrix", *WIDE]}},
}
html_sidebars = {page.stem: ["all_sections"] for page in HERE.glob("*.md")}
html_sidebars |= {"index": [], "notebooks/*": ["all_sections"], **{name: [] for name in WIDE}}
html_show_sourcelink = False


def underlined(title: str, line: str) -> str:
    """A reStructuredText heading."""
    return f"{title}\n{line * len(title)}\n\n"


def write_reference() -> None:
    """Writes a page for each room, and one for the modules beside them."""
    pages = {"vlmtune": sorted(PACKAGE.glob("*.py"))}
    for room in sorted(path.parent for path in PACKAGE.glob("*/__init__.py")):
        pages[f"vlmtune.{room.name}"] = sorted(room.rglob("*.py"))
    folder = HERE / "api"
    folder.mkdir(exist_ok=True)
    for page in folder.iterdir():
        page.unlink()
    for name, paths in pages.items():
        text = underlined(name, "=")
        for path in paths:
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if parts[-1] == "__main__":
                continue
            text += underlined(module.removeprefix(f"{name}."), "-") if module != name else ""
            text += f".. automodule:: {module}\n\n"
        (folder / f"{name}.rst").write_text(text, encoding="utf-8")
    index = underlined("Reference", "=")
    index += "Most programs need only these names:\n\n.. list-table::\n\n"
    index += "".join(map(row_of, PUBLIC.split()))
    index += "\nThe rooms have the rest:\n\n.. toctree::\n   :maxdepth: 1\n\n"
    index += "".join(f"   {name}\n" for name in pages)
    (folder / "index.rst").write_text(index, encoding="utf-8")


def row_of(name: str) -> str:
    """A table's row for a public name: a link to where it is described, and its first line."""
    value = attrgetter(name)(vlmtune)
    summary = [(getdoc(value) or "").partition("\n")[0]]
    to_restructured(summary)
    link = f":py:obj:`vlmtune.{name} <{value.__module__}.{value.__qualname__}>`"
    return f"   * - {link}\n     - {summary[0]}\n"


def to_restructured(lines: list[str]) -> None:
    """Turns the Markdown of a docstring into reStructuredText: `code`, $math$, indented blocks."""
    text = "\n".join(lines)
    text = re.sub(r"(?<![`:\w])`([^`]+)`(?!`)", lambda m: f"``{' '.join(m[1].split())}``", text)
    text = re.sub(r"(?<=\w``)(?=\w)", r"\\ ", text)  # a plural `s` behind code
    text = re.sub(r"\$([^$]+)\$", lambda m: f":math:`{' '.join(m[1].split())}`", text)
    lines[:] = re.sub(r"(?m)^(\S.*)\n\n(?= {2,}\S)", r"\1\n\n::\n\n", text).split("\n")


def add_sections(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """Gives the navigation the sections of index.md: each caption with its pages."""
    context["sections"] = {}
    for tree in app.env.get_doctree(app.config.root_doc).findall(toctree):
        pages = []
        for _, name in tree["entries"]:
            pages.append((app.env.titles[name].astext(), context["pathto"](name), name == page))
        context["sections"][tree["caption"]] = pages


def wrap_commands(app: Sphinx, page: document) -> None:
    """Breaks long commands before each option, so that a page shows and copies whole commands."""
    for block in page.findall(literal_block):
        if block.get("language") != "sh":
            continue
        lines = []
        for line in block.astext().splitlines():
            lines.append(re.sub(r" (?=--\w)", " \\\n  ", line) if len(line) > 76 else line)
        block.rawsource = "\n".join(lines)
        block[:] = [Text(block.rawsource)]


def setup(app: Sphinx) -> None:
    """Is called by Sphinx before it reads the pages."""
    write_reference()
    app.connect("doctree-read", wrap_commands)
    app.connect("html-page-context", add_sections)
    app.connect("autodoc-process-docstring", lambda *event: to_restructured(event[-1]), 400)
