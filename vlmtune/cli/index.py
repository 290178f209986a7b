"""`vlmtune index`: encodes images once, so that `vlmtune search` finds them by captions.

In: files and a model. Out: the folder of an index, and its number of images on stdout.
Never: a file left out without a message.
"""

import argparse

from vlmtune.cli.plugins import model_of
from vlmtune.errors import counted
from vlmtune.report.screen import say
from vlmtune.search.build import build_index


def run(options: argparse.Namespace) -> None:
    """Indexes `options.images` into `options.out` and prints what it contains now."""
    source = (options.model, options.pretrained, options.architecture)
    model = model_of(options)
    built = build_index(options.images, model, options.out, *source)
    for path, reason in built.unread:
        say(f"not indexed: {path}: {reason}")
    line = f"{options.out}: {counted(built.images, 'image')}, {built.added} of them new or changed"
    if built.unread:
        line += f"; not indexed: {len(built.unread)}"
    say(line)
