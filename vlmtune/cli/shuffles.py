"""`vlmtune shuffles`: writes the shuffled captions that ARO's order benchmarks read.

In: a file of captions. Out: a file with four shuffles of each. Never: a change of its input.
"""

import argparse

from vlmtune.benchmarks.aro_shuffles import read_captions, write_shuffles
from vlmtune.errors import counted
from vlmtune.storage.files import check_outputs


def run(options: argparse.Namespace) -> None:
    """Shuffles the captions of `options.annotations` in four ways and writes `options.out`."""
    check_outputs([options.out], [options.annotations])
    count = 0
    for _, captions in read_captions(options.annotations):
        count += len(captions)
    write_shuffles(options.annotations, options.out, options.spacy, options.seed)
    print(f"{options.out}: four shuffles of {counted(count, 'caption')}, seed {options.seed}")
