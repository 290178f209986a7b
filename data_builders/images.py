"""Where image files are: in the images folder alone, of which a few may be missing."""

from collections import Counter
from pathlib import Path, PurePath

from vlmtune.errors import UserError

LIMIT = 0.02  # share of missing files that a corpus survives


class Presence:
    """Counts missing image files, and refuses a corpus that lacks more than a few.

    Args:
        counts: Where to count `skipped: image missing`.
        limit: Largest share of missing files.
    """

    def __init__(self, counts: Counter[str], limit: float = LIMIT) -> None:
        if not 0.0 <= limit <= 1.0:
            raise UserError(
                f"expected a share of missing images from 0 to 1, got {limit}: correct it"
            )
        self.counts, self.limit = counts, limit
        self.asked = self.missing = 0
        self.example: Path | None = None

    def has(self, file: Path) -> bool:
        """Tells whether the file is there, and counts it."""
        self.asked += 1
        if file.is_file():
            return True
        self.missing += 1
        self.counts["skipped: image missing"] += 1
        self.example = self.example or file
        return False

    def check(self) -> None:
        """Raises `UserError` where more than the allowed share was missing."""
        if self.missing > self.limit * self.asked:
            raise UserError(
                f"expected at most {self.limit:.0%} of {self.asked} images to be missing, got "
                f"{self.missing}, {self.example} first: download them or correct the folder"
            )


def inside(folder: Path, name: str | PurePath, source: Path, entry: str) -> Path:
    """Returns the path of an image that an annotation file names, which must lie in the folder.

    Shards hold the bytes of whatever is named, so a downloaded annotation file could otherwise have
    any file of the machine written into them. Links within the folder are the user's own.

    Args:
        folder: The images folder.
        name: The name, relative to it.
        source: The annotation file.
        entry: Which of its entries has the name, "row 3".

    Raises:
        UserError: The name is absolute or has a part "..".

    Example:
        >>> inside(Path("images"), "train/1.jpg", Path("rows.json"), "row 3").as_posix()
        'images/train/1.jpg'
    """
    path = PurePath(name)
    if path.anchor or ".." in path.parts:
        raise UserError(
            f"expected image files inside {folder}, {entry} of {source} is {str(name)!r}: "
            "use the file as distributed, or correct that name"
        )
    return folder / path
