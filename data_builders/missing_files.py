"""The advice for a file that is not there. In: its path. Out: what to do. It opens nothing."""

from pathlib import Path

WORLD = Path("data/scenes")  # where the configs look for the rendered world


def obtain(path: Path) -> str:
    """Returns the advice: files of the rendered world are built, others are downloaded.

    Example:
        >>> obtain(Path("data/coco/dataset_coco.json"))
        'download it or correct the path'
        >>> obtain(Path("data/scenes/compositions.json"))
        'run `vlmtune build scenes --out data/scenes` or correct the path'
    """
    how = f"run `vlmtune build scenes --out {WORLD}`" if path.is_relative_to(WORLD) else ""
    return f"{how or 'download it'} or correct the path"
