"""Shuffled captions for ARO's order benchmarks.

In: a JSON file of captions. Out: the shuffles beside it. Never: a random draw without a seed.
"""

from pathlib import Path

from vlmtune.benchmarks import aro_shuffles


def write_shuffles(root: Path, captions: str) -> None:
    """Writes NAME_shuffles.json beside NAME.json, with the tagger of vlmtune and seed 0."""
    path = root / captions
    aro_shuffles.write_shuffles(path, path.with_name(f"{path.stem}_shuffles.json"))
