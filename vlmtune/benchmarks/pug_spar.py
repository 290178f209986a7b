"""PUG: SPAR, hard negatives: animals on the other side, exchanged, or with exchanged textures.

In: the csv and its images. Out: items of the multiple-choice rule.

Files: `labels.csv` with the columns filename, world_name, character_name, character2_name,
character1_pos, character2_pos, character_texture, character2_texture, and the images it names:
10 backgrounds x 33 x 33 (32 animals or "blank") x 4 groups (Default left/right, Default bottom/top,
Blue/Red left/right, Grass/Stone left/right) = 43,560. Captions are those of the published script,
letter for letter: names as the csv has them ("GiantTortoise", "Anlylosaurus"), "a" before a vowel,
and the animals of an unordered pair sorted. Source: Bordes et al. 2023, section 3.4, figure 6 and
tables 2 and 11.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import read_csv, write_csv, write_image
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem, MultipleChoice
from vlmtune.errors import UserError
from vlmtune.types import ImageRef

SOURCE = "vlmtune download pug_spar"
BLANK = "blank"
COLUMNS = (
    *("filename", "world_name", "character_name", "character2_name"),
    *("character1_pos", "character_texture", "character2_texture"),
)
RENAMED = {"below": "bottom", "above": "top"}  # sides in some copies
SCENES = 10  # images of `scene` in the published script


@dataclass(frozen=True)
class SparRow:
    """One image of the csv; a missing animal is "blank", with the group's side and texture."""

    file: str
    world: str
    first: str
    second: str
    side: str
    texture: str
    texture2: str

    @property
    def animals(self) -> int:
        """How many animals are in the image."""
        return (self.first != BLANK) + (self.second != BLANK)

    @property
    def animal(self) -> str:
        """The animal of an image that has one."""
        return self.second if self.first == BLANK else self.first


@dataclass(frozen=True)
class SetUp:
    """n images with their true captions, the hard negatives of these, and all candidates."""

    name: str
    rows: tuple[SparRow, ...]
    captions: tuple[str, ...]
    negatives: tuple[str, ...] | None
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class Definition:
    """Which rows a set-up has, and their captions."""

    animals: int  # how many animals an image has
    template: str  # the caption without its background; it names animals, side, world and texture2
    texture: str = ""  # the texture of the first animal; "" for any
    sides: tuple[str, ...] = ()  # the side of the first and of the second animal; none for any
    # Whether captions have hard negatives: the other side, or the animals exchanged
    hard: bool = False

    def has(self, row: SparRow) -> bool:
        """Whether an image belongs to the set-up."""
        if row.animals != self.animals or self.texture not in ("", row.texture):
            return False
        if self.hard and row.first == row.second:  # exchanged, they would be the same caption
            return False
        return not self.sides or row.side == self.sides[0]

    def caption(self, row: SparRow, negative: bool = False) -> str:
        """The caption of an image, or its hard negative, without the background."""
        if self.animals == 1:
            is_second = row.first == BLANK
            return self._single(row.animal, int(is_second != negative))
        first = row.first
        second = row.second
        if negative:
            first, second = second, first
        elif not self.hard:
            first, second = sorted((first, second))  # as the script writes pairs without order
        return self.template.format(
            first=first,
            second=second,
            world=row.world,
            texture2=row.texture2,
        )

    def _single(self, animal: str, side: int) -> str:
        position = self.sides[side] if self.sides else ""
        return self.template.format(first=animal, side=position)

    def candidates(self, rows: Sequence[SparRow], endings: Sequence[str]) -> list[str]:
        """All captions of some images, with each ending, in the order of the published script."""
        # Texts that go together: with each ending they come one after the other.
        if self.animals == 1:
            together = self._by_animal(rows)
        elif self.animals == 2 and not self.hard:
            # The animals of an image have no order, and the script sorts their names.
            by_names: dict[tuple[str, ...], str] = {}
            for row in rows:
                names = tuple(sorted((row.first, row.second)))
                by_names[names] = self.caption(row)
            together = [(by_names[names],) for names in sorted(by_names)]
        else:
            together = [(self.caption(row),) for row in rows]
        candidates = []
        for texts in together:
            for ending in endings:
                candidates += [text + ending for text in texts]
        return candidates

    def _by_animal(self, rows: Sequence[SparRow]) -> list[tuple[str, ...]]:
        """The captions of each animal, one for each side."""
        # The names of the first animals: "blank" is among them, a candidate that is never true.
        names = dict.fromkeys(row.first for row in rows)
        names |= dict.fromkeys(row.animal for row in rows)
        sides = range(len(self.sides) or 1)
        captions = []
        for name in names:
            if name == BLANK and self.sides:
                continue
            captions_of_animal = [self._single(name, side) for side in sides]
            captions.append(tuple(captions_of_animal))
        return captions


SINGLE = "This is a photo of a {first}"
SINGLE_ON_SIDE = f"{SINGLE} on the {{side}} of the picture"
DOUBLE = f"{SINGLE} and a {{second}}"
LEFT_AND_RIGHT = f"{SINGLE} on the left and a {{second}} on the right of the picture"
BOTTOM_AND_TOP = f"{SINGLE} on the bottom and a {{second}} on the top of the picture"
BLUE = f"{SINGLE} textured with Blue and a {{second}} textured with {{texture2}}"
GRASS = f"{SINGLE} textured with Grass and a {{second}} textured with {{texture2}}"
SIDES = ("left", "right")
HEIGHTS = ("bottom", "top")
DEFINITIONS = {
    "scene": Definition(0, "This is a photo in a {world} environment"),
    "single_default": Definition(1, SINGLE, "Default"),
    "single_blue_red": Definition(1, SINGLE, "Blue"),
    "single_grass_stone": Definition(1, SINGLE, "Grass"),
    "single_left_right": Definition(1, SINGLE_ON_SIDE, "Default", SIDES, hard=True),
    "single_bottom_top": Definition(1, SINGLE_ON_SIDE, "Default", HEIGHTS, hard=True),
    "double_default": Definition(2, DOUBLE, "Default"),
    "double_blue_red": Definition(2, DOUBLE, "Blue"),
    "double_grass_stone": Definition(2, DOUBLE, "Grass"),
    "double_left_right": Definition(2, LEFT_AND_RIGHT, "Default", SIDES, hard=True),
    "double_bottom_top": Definition(2, BOTTOM_AND_TOP, "Default", HEIGHTS, hard=True),
    "attributes_blue_red": Definition(2, BLUE, "Blue", hard=True),
    "attributes_grass_stone": Definition(2, GRASS, "Grass", hard=True),
}
HARD = tuple(name for name, definition in DEFINITIONS.items() if definition.hard)


def make(name: str, rows: Sequence[SparRow], background: bool, published: bool) -> SetUp:
    """Makes a set-up of the rows of all worlds that are compared.

    With `background` captions name the background, and candidates each of them. With `published`
    it has no more images than in the published script.
    """
    definition = DEFINITIONS[name]
    used = [row for row in rows if definition.has(row)]
    # Of single animals, those in the second position come first.
    used.sort(key=lambda row: row.first != BLANK)
    if published and name == "scene":
        used = used[:SCENES]
    if not used:
        raise UserError(
            f"expected images of the set-up {name!r}, got none among {len(rows)} rows: leave it "
            "out of `setups`, name another `world`, or pass the whole csv"
        )
    named = background and name != "scene"  # the caption of a scene names its world anyway

    def ending(world: str) -> str:
        return f" in a {world} environment" if named else ""

    def captions(negative: bool) -> tuple[str, ...]:
        return tuple(definition.caption(row, negative) + ending(row.world) for row in used)

    endings = dict.fromkeys(ending(row.world) for row in rows)
    candidates = dict.fromkeys(definition.candidates(used, list(endings)))
    negatives = captions(negative=True) if definition.hard else None
    return SetUp(
        name=name,
        rows=tuple(used),
        captions=captions(negative=False),
        negatives=negatives,
        candidates=tuple(candidates),
    )


def read_setups(
    path: str,
    setups: Sequence[str],
    world: str | None,
    background: bool = True,
    published: bool = False,
) -> list[SetUp]:
    """Reads `labels.csv` and makes set-ups of it, in the published order."""
    rows = []
    for values in read_csv(path, COLUMNS, SOURCE):
        side = values["character1_pos"]
        row = SparRow(
            file=values["filename"],
            world=values["world_name"],
            first=values["character_name"],
            second=values["character2_name"],
            side=RENAMED.get(side, side),
            texture=values["character_texture"],
            texture2=values["character2_texture"],
        )
        if world in (None, row.world):
            rows.append(row)
    in_order = [name for name in DEFINITIONS if name in setups]
    return [make(name, rows, background, published) for name in in_order]


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

    full_name = "PUG: SPAR"
    asks = "relations"
    citation = "Bordes et al. 2023, PUG, section 3.4, table 2"
    source = SOURCE
    reference_ties = "random"
    limit_per_group = True
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
        setups = read_setups(self.path, self.setups, self.world, self.background)
        for setup in setups:
            assert setup.negatives is not None  # every set-up of `HARD` has them
            cases = zip(setup.rows, setup.captions, setup.negatives, strict=True)
            for row, caption, negative in cases:
                image = ImageRef(Path(self.images, row.file))
                items.append(ChoiceItem(image, (caption, negative), setup.name))
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
    grid = itertools.product(looks, animals, animals, worlds)
    for number, (look, first, second, world) in enumerate(grid):
        file = f"{number}.png"
        rows.append([file, world, first, second, *look])
        write_image(folder / file, 3 * number, 255 - 3 * number, number)
    header = [*COLUMNS[:5], "character2_pos", *COLUMNS[5:]]
    write_csv(folder / "labels.csv", header, rows)
