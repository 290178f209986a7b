"""CREPE systematicity: captions of compounds that a pre-training set has seen, or has not.

In: csv files and Visual Genome's images. Out: items of the multiple-choice rule.

Files: `syst_vg_hard_negs_<seen|unseen>_compounds_in_<cc12m|yfcc|laion>.csv` with the columns
`image_id`, `caption`, `x`, `y`, `width`, `height` of the crop, and `valid_hard_negs_atom`,
`valid_hard_negs_comp`, `valid_hard_negs_combined` (Python list literals), the last being the first
two together. Source: Ma et al. 2023, sections 3 and 4.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from typing_extensions import override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.crepe_files import COLUMNS, SOURCE, read_regions
from vlmtune.benchmarks.files import write_csv, write_image
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem, MultipleChoice

NEGATIVES = ("atom", "comp", "combined")
COMPOUNDS = ("seen", "unseen")


class CrepeSystematicity(MultipleChoice):
    """Recall@1 on seen and on unseen compounds.

    - `accuracy/seen`, `accuracy/unseen`: recall@1 of each file; the numbers of the authors.
    - `accuracy`: over all items of both; `macro_accuracy`: the mean of the two.
    - `mean_rank`, `median_rank`, `recall@3`, `recall@5`.

    Chance is the mean of 1 / candidates. "strict": captions are lower-cased, a tie is wrong, and a
    negative that repeats the caption is left out, as is an item without negatives of the chosen
    kind. "reference": captions as in the file, and a tie is right, because the authors sort with
    the true caption first; so is an item without negatives, and `without_negatives` counts these.

    The division into seen and unseen says something only of models pre-trained on `corpus`.

    Args:
        corpus: The pre-training set: "cc12m", "yfcc" or "laion".
        negatives: "atom" (one atom replaced), "comp" (compounds recombined) or "combined".
        compounds: "seen", "unseen" or both.
    """

    full_name = "CREPE systematicity"
    asks = "edited captions"
    citation = "Ma et al. 2023, CREPE, section 4 (systematicity, recall@1)"
    source = SOURCE
    reference_ties = "right"
    reference_alone = True
    recalls = (3, 5)
    subsets_of: ClassVar[Mapping[str, Sequence[object]]] = {"compounds": COMPOUNDS}

    path: str
    images: str
    corpus: Literal["cc12m", "yfcc", "laion"] = "laion"
    negatives: Literal["atom", "comp", "combined"] = "combined"
    compounds: Sequence[str] = COMPOUNDS
    convention: Convention = "strict"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "CrepeSystematicity":
        header = [*COLUMNS, *(f"valid_hard_negs_{kind}" for kind in NEGATIVES)]
        rows_of = {
            "seen": [
                ("a red brick path", ["a brown brick path"], ["a red mall and blue path"] * 2),
                ("a tall tree", ["a short tree"], []),
            ],
            "unseen": [("a blue dog", ["a red dog"], ["a blue cat and a red dog"])],
        }
        for compound, rows in rows_of.items():
            path = folder / f"syst_vg_hard_negs_{compound}_compounds_in_laion.csv"
            cells = []
            for i, (caption, atom, comp) in enumerate(rows):
                lists = map(repr, (atom, comp, atom + comp))
                cells.append([i + 1, caption, 2, 1, 5, 6, *lists])
            write_csv(path, header, cells)
        for number in (1, 2):
            write_image(folder / "VG_100K" / f"{number}.jpg", 100 * number, 50, 90)
        return cls(str(folder), str(folder))

    @override
    def read(self) -> list[ChoiceItem]:
        items = []
        for compound in self.compounds:
            path = Path(self.path, f"syst_vg_hard_negs_{compound}_compounds_in_{self.corpus}.csv")
            column = f"valid_hard_negs_{self.negatives}"
            for row, image, negatives in read_regions(path, self.images, column):
                candidates = (row["caption"], *negatives)
                if self.strict:
                    candidates = tuple(text.lower() for text in candidates)
                if negatives or not self.strict:
                    items.append(ChoiceItem(image, candidates, compound))
        return items
