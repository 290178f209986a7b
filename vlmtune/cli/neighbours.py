"""`vlmtune neighbours`: mines the images of a corpus that are hard to tell apart.

In: shards and a model. Out: the folder of a similarity cache, on stdout.
Never: a change of the shards.
"""

import argparse
import shlex
import sys

from vlmtune.cli.plugins import model_of
from vlmtune.mining.mine import mine
from vlmtune.mining.neighbours import MinedNeighbours


def run(options: argparse.Namespace) -> None:
    """Builds the similarity cache of `options.shards` under `options.out` and prints its folder."""
    model = compared = model_of(options)
    if options.features is not None:
        compared = model_of(options, model=options.features, pretrained=None, architecture=None)
    scored = None if options.images_only else model
    cache = mine(
        options.shards,
        scored,
        compared,
        options.out,
        options.store,
        options.neighbours,
        options.batch_size,
    )
    print(cache.folder)
    mined = f"{MinedNeighbours.__module__}.{MinedNeighbours.__name__}"
    folder = shlex.quote(str(cache.folder))
    # Scripts read the folder from stdout.
    print(
        f"next: vlmtune fit ... --data.mined {mined} --data.mined.cache {folder}",
        file=sys.stderr,
    )
