"""Notebooks as pages, with their stored outputs: a build of the documentation runs none of them.

In: the JSON of a notebook. Out: Markdown for MyST. Never: a notebook that is changed.
"""

import json
from typing import Any

from docutils.nodes import document
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx
from typing_extensions import override


class NotebookParser(MystParser):
    """Reads a notebook as the Markdown page of its cells."""

    supported = ("notebook",)

    @override
    def parse(self, inputstring: str, document: document) -> None:
        cells = json.loads(inputstring)["cells"]
        super().parse("\n\n".join(map(as_markdown, cells)), document)


def as_markdown(cell: dict[str, Any]) -> str:
    """A cell with its outputs: printed text as a block, and pictures within the page."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    parts = [_block("python", source)]
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            parts.append(_block("text", "".join(output["text"])))
            continue
        shown = output["data"]
        if "image/jpeg" in shown:
            picture = shown["image/jpeg"].replace("\n", "")
            parts.append(f"![What the cell above shows](data:image/jpeg;base64,{picture})")
        else:
            parts.append(_block("text", "".join(shown["text/plain"])))
    return "\n\n".join(parts)


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def setup(app: Sphinx) -> None:
    """Is called by Sphinx as it loads the extensions of conf.py."""
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
