"""PUG: SPAR, retrieval: which caption of all captions of a set-up is the image's.

In: the csv and its images. Out: items of the classification rule, each set-up with its own
candidates.

Files: as in `vlmtune.benchmarks.pug_spar`. Source: Bordes et al. 2023, section 3.4.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from jaxtyping import Int
from torch import Tensor
from typing_extensions import override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import check_chosen
from vlmtune.benchmarks.items import numbered
from vlmtune.benchmarks.pug_spar import DEFINITIONS, SOURCE, SetUp, read_setups, write_grid
from vlmtune.benchmarks.rules.classification import Candidate, Classification, ClassItem
from vlmtune.types import ImageRef

SETUPS = tuple(DEFINITIONS)


class PugSparRetrieval(Classification):
    """Top-1 and top-5 among all captions of a set-up (figure 6; with one world, table 11).

    Set-ups (images in all worlds; candidates with the background in the caption):

    - `scene` (40; 10): the background alone;
    - `single_default` (1,280; 330), `single_blue_red`, `single_grass_stone` (640; 330): one animal;
    - `single_left_right`, `single_bottom_top` (640; 640): one animal and where it is;
    - `double_default` (20,480; 5,280), `double_blue_red`, `double_grass_stone` (10,240; 5,280):
      two animals, in any order;
    - `double_left_right`, `double_bottom_top` (9,920; 9,920): two animals and where they are;
    - `attributes_blue_red`, `attributes_grass_stone` (9,920; 9,920): two animals with textures.

    `accuracy/<set-up>` and `recall@5/<set-up>`; `accuracy` over all, an image counting once in each
    set-up it is in, and `macro_accuracy`, the mean over set-ups (the paper prints neither).
    Intervals of `scene` count backgrounds, all others images. Chance is 1 over the number of
    candidates. The script's candidates stay, so one that is never true, "This is a photo of a
    blank", stands among those of single animals without a side (33 names, not 32).

    Conventions: in "strict" every row counts and a tie is wrong. In "reference", as in the
    published script, `scene` has the first ten rows and the first of tied candidates wins, in the
    order of the script, or of appearance where the script's order differs from run to run.

    Args:
        setups: Which set-ups; null for all, with one world all but `scene`.
        world: Only the images of this background, such as "SaltFlats" (table 11).
        background: Whether captions name the background; candidates then name each.
    """

    group_keys: ClassVar[Mapping[str, int]] = {"accuracy": 1, "recall@5": 5}
    bank_per_group = True
    class_series = False
    shown = 2
    full_name = "PUG: SPAR retrieval"
    asks = "relations"
    citation = "Bordes et al. 2023, PUG, section 3.4, figure 6 and table 11"
    source = SOURCE

    path: str
    images: str
    setups: Sequence[str] | None = None
    world: str | None = None
    background: bool = True
    convention: Convention = "strict"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_chosen("setups", self._names, self._known)

    @property
    def _known(self) -> list[str]:
        # With one background there is nothing to tell apart.
        return [name for name in SETUPS if self.world is None or name != "scene"]

    @property
    def _names(self) -> Sequence[str]:
        return self._known if self.setups is None else self.setups

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "PugSparRetrieval":
        write_grid(folder)
        return cls(str(folder / "labels.csv"), str(folder), ["single_left_right"])

    @cached_property
    def _setups(self) -> dict[str, SetUp]:
        setups = read_setups(
            self.path,
            self._names,
            self.world,
            background=self.background,
            published=not self.strict,
        )
        return {setup.name: setup for setup in setups}

    @override
    def read(self) -> list[ClassItem]:
        items = []
        for name, setup in self._setups.items():
            for row, caption in zip(setup.rows, setup.captions, strict=True):
                image = ImageRef(Path(self.images, row.file))
                items.append(ClassItem(image, caption, name, row.file))
        return items

    @override
    def candidates(self, group: str) -> list[Candidate]:
        return [Candidate((text,), text, text) for text in self._setups[group].candidates]

    @override
    def group_clusters(self, group: str, items: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        if group != "scene":
            return super().group_clusters(group, items)
        # The caption of a scene names its background.
        _, clusters = numbered(self.items.labels[items].tolist())
        return clusters
