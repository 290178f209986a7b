"""CREPE systematicity: captions of compounds that a pre-training set has seen, or has not.

Files: `syst_vg_hard_negs_<seen|unseen>_compounds_in_<cc12m|yfcc|laion>.csv` with the columns
`image_id`, `caption`, `x`, `y`, `width`, `height` of the crop, and `valid_hard_negs_atom`,
`valid_hard_negs_comp`, `valid_hard_negs_combined` (Python list literals), the last being the first
two together. Source: Ma et al. 2023, sections 3 and 4.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vlmtune.benchmarks.base import Benchmark, Convention
from vlmtune.benchmarks.choices import Choice, Choices
from vlmtune.benchmarks.crepe_files import SOURCE, Crops, check_chosen, items
from vlmtune.metrics.multiple_choice import Ties
from vlmtune.metrics.value import MetricValue
from vlmtune.report.result import Result

CORPORA = ("cc12m", "yfcc", "laion")
NEGATIVES = ("atom", "comp", "combined")
COMPOUNDS = ("seen", "unseen")


class CrepeSystematicity(Choices):
    """Recall@1 on seen and on unseen compounds.

    - `accuracy/seen`, `accuracy/unseen`: recall@1 of each file; the numbers of the authors.
    - `accuracy`: over all items of both; `macro_accuracy`: the mean of the two.
    - `mean_rank`, `median_rank`, `recall@3`, `recall@5`.

    Items differ in how many negatives they have, so chance is the mean of 1 / candidates. "strict":
    captions are lower-cased, a tie is wrong, and a negative that repeats the caption is left out,
    as is an item without negatives of the chosen kind. "reference": captions as in the file, and a
    tie is right, because the authors sort with the true caption first; an item without negatives is
    right too, as in the published script, which ranks the caption among itself alone (its chance is
    1), and `without_negatives` counts such items where there are any. The primary metric is
    `accuracy`.

    The division into seen and unseen says something only of models pre-trained on `corpus`.

    Args:
        path: The folder with the csv files.
        images: The folder with `VG_100K` and `VG_100K_2`.
        corpus: The pre-training set: "cc12m", "yfcc" or "laion".
        negatives: "atom" (one atom replaced), "comp" (compounds recombined) or "combined".
        compounds: "seen", "unseen" or both.
        name: Name in reports, unique within a run.
        convention: "strict" or "reference".
        limit: Evaluate at most so many items of all.
        seed: Draw them at random with this seed; None takes the first ones.

    Raises:
        UserError: An argument is none of the values above, or `limit` is below 1.
    """

    version: ClassVar[str] = "1"
    citation: ClassVar[str] = "Ma et al. 2023, CREPE, section 4 (systematicity, recall@1)"
    source: ClassVar[str] = SOURCE
    reference_ties: ClassVar[Ties] = "right"
    recalls: ClassVar[tuple[int, ...]] = (3, 5)

    def __init__(
        self,
        path: str,
        images: str,
        corpus: Literal["cc12m", "yfcc", "laion"] = "laion",
        negatives: Literal["atom", "comp", "combined"] = "combined",
        compounds: Sequence[str] = COMPOUNDS,
        name: str = "crepe_systematicity",
        convention: Convention = "strict",
        limit: int | None = None,
        seed: int | None = 0,
    ) -> None:
        super().__init__(name, convention, limit, seed)
        for argument, given, known in (
            ("corpus", [corpus], CORPORA),
            ("negatives", [negatives], NEGATIVES),
            ("compounds", list(compounds), COMPOUNDS),
        ):
            check_chosen(argument, given, known)
        self.path = Path(path)
        self.crops = Crops(Path(images))
        self.corpus = corpus
        self.column = f"valid_hard_negs_{negatives}"
        self.compounds = tuple(compounds)
        self._alone: list[Choice] = []

    @classmethod
    def fixture(cls, folder: Path) -> Benchmark:
        """Two items of seen compounds, one of unseen ones; one or three negatives."""
        (folder / "VG_100K").mkdir()
        header = ["region_id", "caption", "x", "y", "width", "height", "image_id"]
        header += [f"valid_hard_negs_{kind}" for kind in NEGATIVES]
        made = {
            "seen": [
                ("a red brick path", ["a brown brick path"], ["a red mall and blue path"] * 2),
                ("a tall tree", ["a short tree"], []),
            ],
            "unseen": [("a blue dog", ["a red dog"], ["a blue cat and a red dog"])],
        }
        for compound, rows in made.items():
            path = folder / f"syst_vg_hard_negs_{compound}_compounds_in_laion.csv"
            with path.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(header)
                for i, (caption, atom, comp) in enumerate(rows):
                    lists = [repr(atom), repr(comp), repr(atom + comp)]
                    writer.writerow([i, caption, 2, 1, 5, 6, i + 1, *lists])
        for number in (1, 2):
            image = Image.new("RGB", (8, 8), (100 * number, 50, 90))
            image.save(folder / "VG_100K" / f"{number}.jpg")
        return cls(str(folder), str(folder))

    def _read(self) -> list[Choice]:
        return [choice for compound in self.compounds for choice in self._choices(compound)]

    def _choices(self, compound: str) -> Iterator[Choice]:
        path = self.path / f"syst_vg_hard_negs_{compound}_compounds_in_{self.corpus}.csv"
        for row, image, negatives in items(path, self.crops, self.column):
            candidates = (row["caption"], *negatives)
            if self.convention == "strict":
                candidates = tuple(text.lower() for text in candidates)
            if negatives or self.convention == "reference":
                yield Choice(image, candidates, compound)

    def _checked(self, choices: Sequence[Choice]) -> tuple[list[Choice], int]:
        """Items without negatives come last; alone they make no benchmark."""
        self._alone = [choice for choice in choices if len(choice.candidates) == 1]
        kept, identical = super()._checked([c for c in choices if len(c.candidates) > 1])
        return kept + self._alone if kept else [], identical

    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        """Chooses the best candidate of each item; the gallery has those with a choice."""
        result = super().evaluate(scores)
        if not self._alone:
            return result
        left_out = [(one.image, f"{one.candidates[0]} (not: ") for one in self._alone]
        count = MetricValue(
            float(len(left_out)), result.metrics["accuracy"].n, higher_is_better=False, unit="count"
        )
        return replace(
            result,
            metrics=dict(result.metrics) | {"without_negatives": count},
            examples=tuple(
                example
                for example in result.examples
                if not any(
                    example.images == (image,) and example.query.startswith(said)
                    for image, said in left_out
                )
            ),
        )
