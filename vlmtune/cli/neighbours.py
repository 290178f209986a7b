"""`vlmtune neighbours`: mines the images of a corpus that are hard to tell apart.

In: shards and a model. Out: the folder of a similarity cache, on stdout.
Never: a change of the shards.
"""

import argparse

from vlmtune.cli.plugins import find_device, find_model
from vlmtune.mining.mine import mine


def run(options: argparse.Namespace) -> None:
    """Builds the similarity cache of `options.shards` under `options.out` and prints its folder."""
    device = find_device(options.device)
    source = (options.pretrained, options.architecture, options.packages)
    model = find_model(options.model, *source).to(device)
    compared = model
    if options.features is not None:
        compared = find_model(options.features, packages=options.packages).to(device)
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
