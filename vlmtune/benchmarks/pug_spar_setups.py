"""The set-ups of PUG: SPAR: which images each one has, their captions, and the candidates.

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
        fits = row.animals == self.animals and self.texture in ("", row.texture)
        alike = self.hard and row.first == row.second
        return fits and not alike and row.side in (self.sides[:1] or (row.side,))

    def caption(self, row: SparRow, negative: bool = False) -> str:
        """The caption of an image, or its hard negative, without the background."""
        if self.animals == 1:
            return self._single(row.animal, int((row.first == BLANK) != negative))
        names = [row.first, row.second]
        first, second = names[::-1] if negative else names if self.hard else sorted(names)
        return self.template.format(
            first=first, second=second, world=row.world, texture2=row.texture2
        )

    def _single(self, animal: str, side: int) -> str:
        return self.template.format(first=animal, side=self.sides[side] if self.sides else "")

    def candidates(self, rows: Sequence[SparRow], endings: Sequence[str]) -> list[str]:
        """All captions of some images, with each ending, in the order of the published script."""
        texts = [(self.caption(row),) for row in rows]
        if self.animals == 1:
            # The names of the first animals: "blank" is among them, a candidate that is never true.
            names = dict.fromkeys([*(row.first for row in rows), *(row.animal for row in rows)])
            sides = range(len(self.sides) or 1)
            animals = [name for name in names if name != BLANK or not self.sides]
            texts = [tuple(self._single(name, side) for side in sides) for name in animals]
        elif self.animals == 2 and not self.hard:
            by_names = {tuple(sorted((row.first, row.second))): self.caption(row) for row in rows}
            texts = [(by_names[names],) for names in sorted(by_names)]
        return [text + end for group in texts for end in endings for text in group]


def _definitions() -> dict[str, Definition]:
    textures = {"default": "Default", "blue_red": "Blue", "grass_stone": "Grass"}
    sides = {"left_right": ("left", "right"), "bottom_top": ("bottom", "top")}
    single, pair = "This is a photo of a {first}", "This is a photo of a {first}%s and a {second}%s"
    on_sides = {
        k: pair % (f" on the {a}", f" on the {b} of the picture") for k, (a, b) in sides.items()
    }
    on_side = f"{single} on the {{side}} of the picture"
    textured = {
        k: pair % (f" textured with {v}", " textured with {texture2}") for k, v in textures.items()
    }
    return {
        "scene": Definition(0, "This is a photo in a {world} environment"),
        **{f"single_{k}": Definition(1, single, v) for k, v in textures.items()},
        **{f"single_{k}": Definition(1, on_side, "Default", v, True) for k, v in sides.items()},
        **{f"double_{k}": Definition(2, pair % ("", ""), v) for k, v in textures.items()},
        **{f"double_{k}": Definition(2, on_sides[k], "Default", v, True) for k, v in sides.items()},
        **{
            f"attributes_{k}": Definition(2, textured[k], textures[k], hard=True)
            for k in ("blue_red", "grass_stone")
        },
    }


DEFINITIONS = _definitions()
HARD = tuple(name for name, definition in DEFINITIONS.items() if definition.hard)


def make(name: str, rows: Sequence[SparRow], background: bool, published: bool) -> SetUp:
    """Makes a set-up of some rows.

    Args:
        name: One of `DEFINITIONS`.
        rows: The rows of all worlds that are compared.
        background: Whether captions name the background; candidates then name each.
        published: Whether to take no more images than the published script does.
    """
    definition = DEFINITIONS[name]
    # Of single animals, those in the second position come first.
    used = sorted((row for row in rows if definition.has(row)), key=lambda row: row.first != BLANK)
    used = used[:SCENES] if published and name == "scene" else used
    if not used:
        raise UserError(
            f"expected images of the set-up {name!r}, got none among {len(rows)} rows: "
            "leave it out of `setups`, or pass the whole csv"
        )
    if len({row.file for row in used}) < len(used):
        raise UserError(f"expected each filename of the set-up {name!r} once: download it again")
    named = background and name != "scene"  # the caption of a scene names its world anyway

    def ending(world: str) -> str:
        return f" in a {world} environment" if named else ""

    def captions(negative: bool) -> tuple[str, ...]:
        return tuple(definition.caption(row, negative) + ending(row.world) for row in used)

    endings = list(dict.fromkeys(ending(row.world) for row in rows))
    candidates = dict.fromkeys(definition.candidates(used, endings))
    negatives = captions(True) if definition.hard else None
    return SetUp(name, tuple(used), captions(False), negatives, tuple(candidates))


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
        rows.append(
            SparRow(file, background_name, first, second, RENAMED.get(side, side), *textures)
        )
    worlds = dict.fromkeys(row.world for row in rows)
    if world is not None and world not in worlds:
        raise UserError(
            f"expected a world of {path} ({', '.join(worlds)}), got {world!r}: choose one, or "
            "leave it out"
        )
    rows = [row for row in rows if world in (None, row.world)]
    return [make(name, rows, background, published) for name in DEFINITIONS if name in setups]
