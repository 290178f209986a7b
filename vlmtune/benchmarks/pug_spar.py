"""PUG: SPAR, hard negatives: animals on the other side, exchanged, or with exchanged textures.

In: the csv and its images. Out: items of the multiple-choice rule.

Files: `labels.csv` with the columns filename, world_name, character_name, character2_name,
character1_pos, character2_pos, character_texture, character2_texture, and the images it names:
10 backgrounds x 33 x 33 (32 animals or "blank") x 4 groups (Default left/right, Default bottom/top,
Blue/Red left/right, Grass/Stone left/right) = 43,560. Source: Bordes et al. 2023, section 3.4.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import write_csv, write_image
from vlmtune.benchmarks.pug_spar_setups import BLANK, COLUMNS, HARD, SOURCE, read_setups
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem, MultipleChoice
from vlmtune.metrics.multiple_choice import Ties
from vlmtune.types import ImageRef


class PugSpar(MultipleChoice):
    """Which of two captions is the image's: its own or its hard negative (table 2); chance 1/2.

    Set-ups, with their number of images in all worlds:

    - `single_left_right`, `single_bottom_top` (640): one animal; the negative names the other side;
    - `double_left_right`, `double_bottom_top` (9,920): two animals; the negative exchanges them;
    - `attributes_blue_red`, `attributes_grass_stone` (9,920): two animals with textures; the
      negative exchanges the animals.

    `accuracy/<set-up>`; `accuracy` over all, an image counting once in each set-up it is in, and
    `macro_accuracy`, the mean over set-ups (the paper prints neither).

    Conventions: in "strict" a tie is wrong. In the published script a coin puts the caption or its
    negative first, and the first of two that tie wins; "reference" gives a tie 1/2, the expectation
    of that coin. The script's keys `..._one_objects_Grass_relations_left_...` and `..._bottom_...`
    are `single_left_right` and `single_bottom_top`, with Default textures.

    The published numbers of CLIP and OpenCLIP come from images resized to 224 x 224 (bilinear) and
    normalised with ImageNet's mean and deviation, as with the `preprocessing` of `OpenClip` that
    this plug-in's YAML shows, and from cosines in half precision.

    Args:
        setups: Which set-ups.
        world: Only the images of this background, such as "SaltFlats".
        background: Whether captions name the background.
    """

    citation: ClassVar[str] = "Bordes et al. 2023, PUG, section 3.4, table 2"
    source: ClassVar[str] = SOURCE
    reference_ties: ClassVar[Ties] = "random"
    limit_per_group: ClassVar[bool] = True
    subsets_of: ClassVar[Mapping[str, Sequence[object]]] = {"setups": HARD}

    path: str
    images: str
    setups: Sequence[str] = HARD
    world: str | None = None
    background: bool = True
    convention: Convention = "strict"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "PugSpar":
        write_grid(folder)
        return cls(str(folder / "labels.csv"), str(folder))

    @override
    def read(self) -> list[ChoiceItem]:
        items = []
        for setup in read_setups(self.path, self.setups, self.world, self.background):
            assert setup.negatives is not None
            for row, *texts in zip(setup.rows, setup.captions, setup.negatives, strict=True):
                image = ImageRef(Path(self.images, row.file))
                items.append(ChoiceItem(image, tuple(texts), setup.name))
        return items


def write_grid(folder: Path) -> None:
    """Writes the whole grid of two backgrounds and two animals: 72 images."""
    # Sides and textures of the first and of the second animal.
    looks = (
        ("left", "right", "Default", "Default"),
        ("bottom", "top", "Default", "Default"),
        ("left", "right", "Blue", "Red"),
        ("left", "right", "Grass", "Stone"),
    )
    animals = (BLANK, "Goldfish", "GiantTortoise")
    worlds = ("Desert", "SaltFlats")
    rows = []
    for look, first, second, world in itertools.product(looks, animals, animals, worlds):
        i = len(rows)
        rows.append([f"{i}.png", world, first, second, *look])
        write_image(folder / f"{i}.png", 3 * i, 255 - 3 * i, i)
    write_csv(folder / "labels.csv", [*COLUMNS[:5], "character2_pos", *COLUMNS[5:]], rows)
