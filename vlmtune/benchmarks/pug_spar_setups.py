"""The set-ups of PUG: SPAR: which images each one has, their captions, and the candidates.

In: the rows of the csv. Out: images, captions, negatives and candidates of each set-up.

Captions are those of the published script, letter for letter: names as the csv has them
("GiantTortoise", "Anlylosaurus"), "a" before a vowel, and the animals of an unordered pair sorted.
Source: Bordes et al. 2023, PUG, section 3.4, figure 6 and tables 2 and 11.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vlmtune.benchmarks.files import read_csv
from vlmtune.benchmarks.pug_files import SITE
from vlmtune.errors import UserError

SOURCE = f"PUG_SPAR.tar.gz (16 GB), {SITE}"
BLANK = "blank"
COLUMNS = (
    "filename",
    "world_name",
    "character_name",
    "character2_name",
    "character1_pos",
    "character_texture",
    "character2_texture",
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
        if self.hard and row.first == row.second:
            return False
        return not self.sides or row.side == self.sides[0]

    def caption(self, row: SparRow, negative: bool = False) -> str:
        """The caption of an image, or its hard negative, without the background."""
        if self.animals == 1:
            is_second = row.first == BLANK
            return self._single(row.animal, int(is_second != negative))
        first, second = row.first, row.second
        if negative:
            first, second = second, first
        elif not self.hard:
            first, second = sorted((first, second))
        return self.template.format(
            first=first, second=second, world=row.world, texture2=row.texture2
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
            if name != BLANK or not self.sides:
                captions.append(tuple(self._single(name, side) for side in sides))
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
    # Of single animals, those in the second position come first.
    used = sorted(filter(definition.has, rows), key=lambda row: row.first != BLANK)
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

    endings = list(dict.fromkeys(ending(row.world) for row in rows))
    candidates = dict.fromkeys(definition.candidates(used, endings))
    negatives = captions(negative=True) if definition.hard else None
    return SetUp(name, tuple(used), captions(negative=False), negatives, tuple(candidates))


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
        file, background_name, first, second, side, *textures = (values[name] for name in COLUMNS)
        if world in (None, background_name):
            row = SparRow(file, background_name, first, second, RENAMED.get(side, side), *textures)
            rows.append(row)
    return [make(name, rows, background, published) for name in DEFINITIONS if name in setups]
