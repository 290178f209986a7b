"""`vlmtune index`: encodes images once, so that `vlmtune search` finds them by captions.

In: files and a model. Out: the folder of an index, and its number of images on stdout.
Never: a file left out without a message.
"""

import argparse

from rich.markup import escape

from vlmtune.cli.plugins import model_of
from vlmtune.report.screen import console
from vlmtune.search.build import build_index


def run(options: argparse.Namespace) -> None:
    """Indexes `options.images` into `options.out` and prints what it contains now."""
    source = (options.model, options.pretrained, options.architecture)
    model = model_of(options)
    built = build_index(options.images, model, options.out, *source)
    screen = console()
    for path, reason in built.unread:
        screen.print(f"not indexed: {_plain(path)}: {_plain(reason)}", soft_wrap=True)
    line = f"{options.out}: {built.images} images, {built.added} of them new or changed"
    if built.unread:
        line += f"; not indexed: {len(built.unread)}"
    screen.print(_plain(line), soft_wrap=True)


def _plain(text: object) -> str:
    """Text without markup, and with names that are not UTF-8 made printable."""
    letters = str(text).encode(errors="backslashreplace")
    return escape(letters.decode())
