"""The advice for a file that is not there. In: its path. Out: what to do. Never: an opened file."""

from pathlib import Path

from vlmtune.sources.source import source_of

WORLD = Path("data/scenes")  # where the configs look for the rendered world


def obtain(path: Path) -> str:
    """Returns the advice: files of the rendered world are built, others are downloaded.

    Example:
        >>> obtain(Path("data/coco/dataset_coco.json"))
        'run `vlmtune download coco` or correct the path'
        >>> obtain(Path("data/scenes/compositions.json"))
        'run `vlmtune build scenes --out data/scenes` or correct the path'
        >>> obtain(Path("mine.json"))
        'download it or correct the path'
    """
    if path.is_relative_to(WORLD):
        return f"run `vlmtune build scenes --out {WORLD}` or correct the path"
    source = source_of(path)
    if source is None:
        return "download it or correct the path"
    return f"run `vlmtune download {source}` or correct the path"
