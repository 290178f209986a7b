"""CREPE productivity: captions of 4 to 12 atoms against five that differ in one place.

In: csv files and Visual Genome's images. Out: items of the multiple-choice rule.

Files: `<type>/prod_vg_hard_negs_<type>_complexity_<n>.csv` for the types atom, swap and negate and
n = 4 to 12, and `prod_vg_hard_negs_<type>_all.csv`, which go on to 14. Columns `image_id`,
`caption`, `n`, `hard_negs` (a Python list or set literal) and `x`, `y`, `width`, `height` of the
crop, among others. Source: Ma et al. 2023, sections 3 and 4.
"""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import PositiveInt
from typing_extensions import override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.crepe_files import SOURCE, read_regions
from vlmtune.benchmarks.files import write_csv, write_image
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem, MultipleChoice, united

TYPES = ("atom", "swap", "negate")
COMPLEXITIES = (4, 5, 6, 7, 8, 9, 10, 11, 12)


class CrepeProductivity(MultipleChoice):
    """Recall@1 over all items, by type of negative, and by type and complexity.

    - `accuracy`: recall@1 over all items of all types (micro).
    - `macro_accuracy`: mean over the types of recall@1 over all items of each. The authors state no
      average; a published comparison (vl_compo) takes this one over the `_all` files.
    - `accuracy/<type>`, and `accuracy/<type>/<n>` for n atoms, the numbers of the authors.
    - `mean_rank`, `median_rank`, `recall@3`, `recall@5`.

    "strict": captions are lower-cased, because negations begin with a capital where true captions
    often do not. A tie is wrong. Negatives that repeat the true caption (34 of the 6,652 swaps, 222
    of the 16,336 negations up to case) are left out of their items. "reference": captions as in the
    file and all five negatives; a tie is right, because the authors sort with the true caption
    first. The primary metric is `accuracy`, in "reference" `macro_accuracy`.

    Args:
        path: The folder `prod_hard_negatives`.
        complexities: Which numbers of atoms; None reads the `_all` files instead.
        negatives: How many of an item's negatives are candidates, drawn by `seed` (null takes the
            first ones); None for all. With 1 chance is 1/2, as where Cola reports CREPE (Ray et al.
            2023, table 2a).
    """

    full_name = "CREPE productivity"
    asks = "edited captions"
    citation = "Ma et al. 2023, CREPE, section 4 (productivity, recall@1)"
    source = SOURCE
    reference_ties = "right"
    reference_metric = "macro_accuracy"
    recalls = (3, 5)
    subsets_of: ClassVar[Mapping[str, Sequence[object]]] = {
        "types": TYPES,
        "complexities": COMPLEXITIES,
    }

    path: str
    images: str
    types: Sequence[str] = TYPES
    complexities: Sequence[int] | None = COMPLEXITIES
    convention: Convention = "strict"
    negatives: PositiveInt | None = None

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "CrepeProductivity":
        rows = (
            ("atom", 4, 1, "computer on floor", ["computer in floor", "mouse on floor"]),
            ("swap", 4, 1, "big cup on red box", ["red cup on big box", "box on big red cup"]),
            ("negate", 5, 2, "dog by tree", {"Dog not by tree", "There is no dog by tree"}),
        )
        for number, name in ((1, "VG_100K"), (2, "VG_100K_2")):
            write_image(folder / name / f"{number}.jpg", 100 * number, 50, 90)
        header = ["image_id", "caption", "n", "hard_negs", "x", "y", "width", "height"]
        for kind, atoms, number, caption, negatives in rows:
            stem = folder / kind / f"prod_vg_hard_negs_{kind}_complexity"
            cells = [number, caption, atoms, repr(negatives), 1.0, 0.0, 6.0, 5.0]
            write_csv(Path(f"{stem}_{atoms}.csv"), header, [cells])
            # The other one of the two complexities, 4 and 5, has no rows.
            other = 9 - atoms
            write_csv(Path(f"{stem}_{other}.csv"), header, [])
        return cls(str(folder), str(folder), complexities=[4, 5])

    @override
    def read(self) -> list[ChoiceItem]:
        items = []
        for kind, path in self._files():
            for row, image, negatives in read_regions(path, self.images, "hard_negs", "n"):
                caption = row["caption"]
                if self.strict:
                    caption = caption.lower()
                    negatives = tuple(text.lower() for text in negatives)
                candidates = (caption, *self._chosen(caption, negatives))
                atoms = row["n"].removesuffix(".0")  # pandas writes whole numbers as floats
                items.append(ChoiceItem(image, candidates, f"{kind}/{atoms}"))
        return items

    def _chosen(self, caption: str, negatives: Sequence[str]) -> Sequence[str]:
        if self.negatives is None:
            return negatives
        if self.strict:  # a negative that repeats the caption is left out, so another is drawn
            negatives = [text for text in negatives if text != caption] or negatives
        count = min(self.negatives, len(negatives))
        if self.seed is None:
            return negatives[:count]
        # Seeded by the caption, so that an item's negative does not depend on other items.
        rng = random.Random(f"{self.seed}/{caption}")
        return rng.sample(list(negatives), count)

    def _files(self) -> Iterator[tuple[str, Path]]:
        for kind in self.types:
            stem = f"prod_vg_hard_negs_{kind}"
            if self.complexities is None:
                yield kind, Path(self.path, f"{stem}_all.csv")
                continue
            for atoms in self.complexities:
                yield kind, Path(self.path, kind, f"{stem}_complexity_{atoms}.csv")

    @override
    def unions(self, groups: Sequence[str]) -> Mapping[str, Collection[str]]:
        return united(groups, self.types, "/")
