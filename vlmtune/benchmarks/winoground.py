"""Winoground: two images and two captions made of the same words in another order.

In: the JSON lines and images. Out: items of the paired rule.

File: `examples.jsonl`, 400 lines of `{"id", "image_0", "image_1", "caption_0", "caption_1", "tag",
"secondary_tag", "num_main_preds", "collapsed_tag"}`. An image is the name of a PNG file without its
ending. Source: Thrush et al. 2022, sections 3 and 4.
"""

from pathlib import Path

from typing_extensions import override

from vlmtune.benchmarks.files import Row, is_text, write_image, write_json
from vlmtune.benchmarks.rules.paired import Paired, PairedItem
from vlmtune.types import ImageRef

KEYS = ("image_0", "image_1", "caption_0", "caption_1")


class Winoground(Paired):
    """Text, image and group accuracy over all items and by the paper's tags.

    Each is also reported by linguistic tag (`/Object`, `/Relation`, `/Both`), by number of main
    predicates (`/1 main predicate`, ...) and by secondary tag (`/Pragmatics`, `/Series`,
    `/Symbolic`, ...; an item may have several or none).
    """

    full_name = "Winoground"
    asks = "word order"
    citation = "Thrush et al. 2022, Winoground, section 3.1"
    source = "vlmtune download winoground"

    path: str
    images: str

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "Winoground":
        cells = (
            ("some plants by a bulb", "a bulb by some plants", "Object", "", 1),
            ("a dog chases a cat", "a cat chases a dog", "Relation", "Series", 2),
            ("it is old and he new", "it is new and he old", "Both", "Series, Symbolic", 2),
        )
        keys = (*KEYS, "collapsed_tag", "secondary_tag", "num_main_preds")
        rows = []
        for i, row in enumerate(cells):
            names = (f"ex_{i}_img_0", f"ex_{i}_img_1")
            for side, name in enumerate(names):
                write_image(folder / "images" / f"{name}.png", 80 * i, 200 * side, 60)
            rows.append(dict(zip(keys, (*names, *row), strict=True)))
        return cls(write_json(folder / "examples.jsonl", rows), str(folder / "images"))

    @override
    def read(self) -> list[PairedItem]:
        items = []
        for row in self.rows(self.path, *KEYS):
            first = ImageRef(Path(self.images, f"{row['image_0']}.png"))
            second = ImageRef(Path(self.images, f"{row['image_1']}.png"))
            texts = (row["caption_0"], row["caption_1"])
            tag = row.get("collapsed_tag")
            group = tag.strip() if is_text(tag) else ""
            items.append(PairedItem((first, second), texts, group, _tags(row)))
        return items


def _tags(row: Row) -> tuple[str, ...]:
    """The secondary tags and the number of main predicates of an item."""
    tags = row.get("secondary_tag")
    predicates = row.get("num_main_preds")
    names = []
    if is_text(tags):  # copies of the data may lack it
        names = [tag.strip() for tag in tags.split(",")]
    if predicates == 1:
        names.append("1 main predicate")
    elif predicates:
        names.append(f"{predicates} main predicates")
    return tuple(name for name in names if name)
