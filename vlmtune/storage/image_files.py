"""The image files of a folder.

In: a folder. Out: paths. Never: an image.
"""

from pathlib import Path

SUFFIXES = (
    *(".avif", ".bmp", ".gif", ".heic", ".heif", ".j2k", ".jp2", ".jpeg", ".jpg"),
    *(".png", ".ppm", ".tif", ".tiff", ".webp"),
)
"""Ends of the names of image files, in lower case."""


def image_files(folder: Path) -> list[Path]:
    """Returns the image files in a folder and its subfolders, sorted, without hidden ones.

    macOS hides a `._a.jpg` beside `a.jpg`, and notebooks hide copies in `.ipynb_checkpoints`.
    """
    files = []
    for file in sorted(folder.rglob("*")):
        if file.suffix.lower() not in SUFFIXES or file.is_dir():
            continue
        parts = file.relative_to(folder).parts
        is_hidden = any(part.startswith(".") for part in parts)
        if not is_hidden:
            files.append(file)
    return files
