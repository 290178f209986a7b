"""PUG: Animals' labels go in, a table with values of one factor withheld comes out.

In: the csv of labels. Out: `animals.csv`, with a split for each image. Never: an image.
"""

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt
from pydantic import NonNegativeInt
from typing_extensions import override

from data_builders.shard_builder import Builder
from data_builders.text_files import csv_table
from vlmtune.data.tables import read_cells
from vlmtune.errors import UserError
from vlmtune.storage.files import reading, write_text

Factor = Literal["background", "size", "texture"]
COLUMN = {
    "background": "world_name",
    "size": "character_scale",
    "texture": "character_texture",
}
TABLE = "animals.csv"
COLUMNS = ("image", "caption", "split", "group")
_READ = ("filename", "character_name", *COLUMN.values())


class PugAnimalsSplitBuilder(Builder):
    """Training images without some values of a factor, and test images with them (PUG, C.2).

    `complete` animals, drawn at random, keep every value of the factor; of the others training has
    only the `kept` values. The test images are all that training lacks. With no complete animal
    their values are unseen; with some, only the combinations are.

    Writes a table of `image`, `caption` ("a photo of a polar bear"), `split` (train, val or test)
    and `group`, the value of the factor. Images of "val" are drawn from those of training, which
    lacks them; their accuracy is that without a shift. `build table` makes shards of the table,
    and the benchmark `table_classification` measures on it.

    Args:
        path: `labels_pug_animal.csv`.
        factor: The factor whose values are withheld.
        kept: The values that stay, or how many, drawn at random.
        complete: Number of animals that keep all values; the paper has 0, 10 and 20 of 70.
        val: Fraction of the training images that goes to "val".
        seed: Seed of what is drawn.
    """

    def __init__(
        self,
        path: Path,
        factor: Factor = "background",
        kept: int | Sequence[str] = 50,
        complete: NonNegativeInt = 0,
        val: Annotated[float, Ge(0), Lt(1)] = 0.05,
        seed: int = 0,
    ) -> None:
        self.path, self.factor, self.complete = Path(path), factor, complete
        self.kept = kept if isinstance(kept, int) else tuple(map(str, kept))
        self.val, self.seed = val, seed

    @override
    def write(self, folder: Path, tick: Callable[[], None]) -> None:
        rows = self._read()
        column, rng = COLUMN[self.factor], random.Random(self.seed)
        kept = self._kept(sorted({row[column] for row in rows}), rng)
        animals = sorted({row["character_name"] for row in rows})
        if self.complete >= len(animals):
            raise UserError(
                f"expected fewer complete animals than {len(animals)}, got "
                f"{self.complete}: lower it"
            )
        complete = set(rng.sample(animals, self.complete))
        out = []
        for row in rows:
            animal, value = row["character_name"], row[column]
            split = "train" if value in kept or animal in complete else "test"
            if split == "train" and rng.random() < self.val:
                split = "val"
            self.counts[f"images: {split}"] += 1
            image, caption = f"{animal}/{row['filename']}", f"a photo of a {words(animal)}"
            out.append((image, caption, split, value))
            tick()
        self.counts["animals: complete"] = self.complete
        self.counts["values: kept"] = len(kept)
        write_text(folder / TABLE, csv_table(COLUMNS, out))

    def _read(self) -> list[dict[str, Any]]:
        rows = []
        with reading(self.path, "PUG: Animals' labels", "pass labels_pug_animal.csv"):
            for row in read_cells(self.path):
                rows.append({name: row[name] for name in _READ})
        return rows

    def _kept(self, values: Sequence[str], rng: random.Random) -> set[str]:
        kept = self.kept
        if isinstance(kept, int) and 0 < kept < len(values):
            return set(rng.sample(values, kept))
        if not isinstance(kept, int) and kept and set(kept) < set(values):
            return set(kept)
        raise UserError(
            f"expected 1 to {len(values) - 1} values out of {values} to keep, got {kept!r}: "
            "correct `kept`"
        )


def words(name: str) -> str:
    """The name of an asset as words.

    Example:
        >>> words("PolarBear"), words("Caribou_01")
        ('polar bear', 'caribou 01')
    """
    spaced = re.sub("([A-Z])", r" \1", name.replace("_", " "))
    return " ".join(spaced.split()).lower()
