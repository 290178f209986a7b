"""Winoground: two images and two captions made of the same words in another order.

File: JSON lines, `examples.jsonl`, 400 of them: `{"id", "image_0", "image_1", "caption_0",
"caption_1", "tag", "secondary_tag", "num_main_preds", "collapsed_tag"}`. An image is the name of a
PNG file without its ending. Source: Thrush et al. 2022, sections 3 and 4.
"""

import json
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from vlmtune.benchmarks.base import Benchmark, Convention
from vlmtune.benchmarks.squares import Square, Squares
from vlmtune.errors import UserError
from vlmtune.types import ImageRef

NEEDED = ("image_0", "image_1", "caption_0", "caption_1")
WANTED = "JSON lines with image_0, image_1, caption_0 and caption_1"


class Winoground(Squares):
    """Text, image and group accuracy over all items and by the paper's tags.

    Each is also given by linguistic tag (`/Object`, `/Relation`, `/Both`), by number of main
    predicates (`/1 main predicate`, ...) and by secondary tag (`/Pragmatics`, `/Series`,
    `/Symbolic`, ...; an item may have several or none). The published script compares strictly, so
    both conventions give the same numbers.

    Args:
        path: `examples.jsonl`.
        images: The folder with the PNG files.
        name: Name in reports, unique within a run.
        convention: "strict" or "reference"; here the same.
        limit: Evaluate at most so many items.
        seed: Draw them at random with this seed; None takes the first ones.

    Raises:
        UserError: `limit` is below 1, or the convention is unknown.
    """

    citation: ClassVar[str] = "Thrush et al. 2022, Winoground, section 3.1"
    source: ClassVar[str] = "huggingface.co/datasets/facebook/winoground (data/, on acceptance)"

    def __init__(
        self,
        path: str,
        images: str,
        name: str = "winoground",
        convention: Convention = "strict",
        limit: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(name, convention, limit, seed)
        self.path = Path(path)
        self.folder = Path(images)

    @classmethod
    def fixture(cls, folder: Path) -> Benchmark:
        """Three items of each kind of tag."""
        (folder / "images").mkdir()
        made = (
            ("some plants by a bulb", "a bulb by some plants", "Noun", "Object", "", 1),
            ("a dog chases a cat", "a cat chases a dog", "Verb", "Relation", "Series", 2),
            ("it is old and he new", "it is new and he old", "Both", "Both", "Series, Symbolic", 2),
        )
        lines = []
        for i, (first, second, tag, collapsed, secondary, predicates) in enumerate(made):
            names = (f"ex_{i}_img_0", f"ex_{i}_img_1")
            for side, name in enumerate(names):
                colour = (80 * i, 200 * side, 60)
                Image.new("RGB", (8, 8), colour).save(folder / "images" / f"{name}.png")
            row = dict(zip(NEEDED, (*names, first, second), strict=True))
            tags = {"tag": tag, "secondary_tag": secondary, "collapsed_tag": collapsed}
            lines.append(json.dumps({"id": i, **row, **tags, "num_main_preds": predicates}))
        path = folder / "examples.jsonl"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return cls(str(path), str(folder / "images"))

    def _read(self) -> list[Square]:
        try:
            text = self.path.read_text(encoding="utf-8")
            # Not splitlines: it would also split at characters that JSON allows within a line.
            rows = [json.loads(line) for line in text.split("\n") if line.strip()]
        except (OSError, ValueError) as error:
            raise UserError(
                f"expected {WANTED} in {self.path}, got {type(error).__name__} ({error}): "
                f"get it from {self.source}, or correct `path`"
            ) from error
        return [self._square(i, row) for i, row in enumerate(rows)]

    def _square(self, i: int, row: Any) -> Square:
        found = [row.get(key) for key in NEEDED] if isinstance(row, dict) else []
        values = [value for value in found if isinstance(value, str) and value.strip()]
        if len(values) != len(NEEDED):
            raise UserError(
                f"expected {WANTED} in {self.path}, got item {i} without one of them: "
                "download the file again"
            )
        first, second = (ImageRef(self.folder / f"{name}.png") for name in values[:2])
        return Square(
            (first, second), (values[2], values[3]), _text(row.get("collapsed_tag")), _tags(row)
        )


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _tags(row: dict[str, Any]) -> tuple[str, ...]:
    """Number of main predicates and secondary tags of an item."""
    tags = [tag.strip() for tag in _text(row.get("secondary_tag")).split(",") if tag.strip()]
    predicates = row.get("num_main_preds")
    if predicates:
        tags.append(f"{predicates} main predicate{'s' * (predicates != 1)}")
    return tuple(tags)
