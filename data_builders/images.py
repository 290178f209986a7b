"""Which image files are there: a few may be missing, a wrong folder may not."""

from collections import Counter
from pathlib import Path

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
