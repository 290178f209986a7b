"""The set-ups of PUG: SPAR: which images each one has, their captions, and the candidates.

Captions are those of the published script, letter for letter: names as the csv has them
("GiantTortoise", "Anlylosaurus"), "a" before a vowel, and the animals of an unordered pair sorted.
Source: Bordes et al. 2023, PUG, section 3.4, figure 6 and tables 2 and 11.
"""

from collections.abc import Callable, Sequence
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
SIDES = {"left_right": ("left", "right"), "bottom_top": ("bottom", "top")}
TEXTURES = {"default": "Default", "blue_red": "Blue", "grass_stone": "Grass"}
RENAMED = {"below": "bottom", "above": "top"}  # sides in some copies


@dataclass(frozen=True)
class Row:
    """One image: its file, its background, the two animals, and the group it was rendered in.

    An animal that is not there is called "blank"; side and texture are still those of the group.
    """

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
    rows: tuple[Row, ...]
    captions: tuple[str, ...]
    negatives: tuple[str, ...] | None
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class Definition:
    """Which rows a set-up has, their captions, and the candidates.

    Attributes:
        name: Name in metrics and configs.
        has: Whether an image belongs to it.
        caption: The caption of an image, without its background.
        candidates: All captions of some images, with each of the endings that name a background.
        negative: The hard negative of the caption, where there is one.
        endings: Whether captions may end in the background.
        published: How many images the published script takes; None for all.
    """

    name: str
    has: Callable[[Row], bool]
    caption: Callable[[Row], str]
    candidates: Callable[[Sequence[Row], Sequence[str]], list[str]]
    negative: Callable[[Row], str] | None = None
    endings: bool = True
    published: int | None = None


def as_row(values: dict[str, str]) -> Row:
    """A row of the csv."""
    file, world, first, second, side, texture, texture2 = (values[name] for name in COLUMNS)
    return Row(file, world, first, second, RENAMED.get(side, side), texture, texture2)


def ending(world: str) -> str:
    """How a caption names the background."""
    return f" in a {world} environment"


def _scene() -> Definition:
    def caption(row: Row) -> str:
        return f"This is a photo{ending(row.world)}"

    return Definition(
        "scene",
        lambda row: row.animals == 0,
        caption,
        lambda rows, _: [caption(row) for row in rows],
        endings=False,
        published=10,
    )


def _single(name: str, texture: str) -> Definition:
    def caption(animal: str) -> str:
        return f"This is a photo of a {animal}"

    def candidates(rows: Sequence[Row], endings: Sequence[str]) -> list[str]:
        # The names of the first animals: "blank" is among them, a candidate that is never true.
        names = dict.fromkeys([*(row.first for row in rows), *(row.animal for row in rows)])
        return [caption(name) + end for name in names for end in endings]

    return Definition(
        f"single_{name}",
        lambda row: row.animals == 1 and row.texture == texture,
        lambda row: caption(row.animal),
        candidates,
    )


def _single_place(name: str, sides: tuple[str, str]) -> Definition:
    def caption(animal: str, side: str) -> str:
        return f"This is a photo of a {animal} on the {side} of the picture"

    def candidates(rows: Sequence[Row], endings: Sequence[str]) -> list[str]:
        names = dict.fromkeys([*(row.first for row in rows), *(row.animal for row in rows)])
        animals = [name for name in names if name != BLANK]
        return [caption(a, side) + end for a in animals for end in endings for side in sides]

    def position(row: Row) -> int:
        return int(row.first == BLANK)

    return Definition(
        f"single_{name}",
        lambda row: row.animals == 1 and row.texture == "Default" and row.side == sides[0],
        lambda row: caption(row.animal, sides[position(row)]),
        candidates,
        lambda row: caption(row.animal, sides[1 - position(row)]),
    )


def _double(name: str, texture: str) -> Definition:
    def caption(row: Row) -> str:
        one, other = sorted((row.first, row.second))
        return f"This is a photo of a {one} and a {other}"

    def candidates(rows: Sequence[Row], endings: Sequence[str]) -> list[str]:
        by_names = {tuple(sorted((row.first, row.second))): caption(row) for row in rows}
        return [by_names[names] + end for names in sorted(by_names) for end in endings]

    return Definition(
        f"double_{name}",
        lambda row: row.animals == 2 and row.texture == texture,
        caption,
        candidates,
    )


def _double_place(name: str, sides: tuple[str, str]) -> Definition:
    def caption(first: str, second: str) -> str:
        one, other = sides
        return (
            f"This is a photo of a {first} on the {one} "
            f"and a {second} on the {other} of the picture"
        )

    return _swapped(
        f"double_{name}",
        lambda row: row.texture == "Default" and row.side == sides[0],
        lambda row: caption(row.first, row.second),
        lambda row: caption(row.second, row.first),
    )


def _attributes(name: str, texture: str) -> Definition:
    def caption(first: str, second: str, row: Row) -> str:
        return (
            f"This is a photo of a {first} textured with {row.texture} "
            f"and a {second} textured with {row.texture2}"
        )

    return _swapped(
        f"attributes_{name}",
        lambda row: row.texture == texture,
        lambda row: caption(row.first, row.second, row),
        lambda row: caption(row.second, row.first, row),
    )


def _swapped(
    name: str,
    has: Callable[[Row], bool],
    caption: Callable[[Row], str],
    negative: Callable[[Row], str],
) -> Definition:
    """Two different animals; the hard negative exchanges them."""

    def candidates(rows: Sequence[Row], endings: Sequence[str]) -> list[str]:
        return [caption(row) + end for row in rows for end in endings]

    def two(row: Row) -> bool:
        return row.animals == 2 and row.first != row.second and has(row)

    return Definition(name, two, caption, candidates, negative)


DEFINITIONS = {
    one.name: one
    for one in (
        _scene(),
        *(_single(name, texture) for name, texture in TEXTURES.items()),
        *(_single_place(name, sides) for name, sides in SIDES.items()),
        *(_double(name, texture) for name, texture in TEXTURES.items()),
        *(_double_place(name, sides) for name, sides in SIDES.items()),
        *(_attributes(name, TEXTURES[name]) for name in ("blue_red", "grass_stone")),
    )
}
HARD = tuple(name for name, one in DEFINITIONS.items() if one.negative)


def make(name: str, rows: Sequence[Row], background: bool, published: bool) -> SetUp:
    """Makes a set-up of some rows.

    Args:
        name: One of `DEFINITIONS`.
        rows: The rows of all worlds that are compared.
        background: Whether captions name the background; candidates then name each.
        published: Whether to take no more images than the published script does.
    """
    definition = DEFINITIONS[name]
    # Of single animals, those in the second position come first.
    chosen = sorted(
        (row for row in rows if definition.has(row)), key=lambda row: row.first != BLANK
    )
    chosen = chosen[: definition.published if published else None]
    if not chosen:
        raise UserError(
            f"expected images of the set-up {name!r}, got none among {len(rows)} rows: "
            "leave it out of `setups`, or pass the whole csv"
        )
    if len({row.file for row in chosen}) < len(chosen):
        raise UserError(f"expected each filename of the set-up {name!r} once: download it again")
    worlds = dict.fromkeys(row.world for row in rows)
    named = background and definition.endings
    endings = [ending(world) for world in worlds] if named else [""]

    def ended(caption: str, row: Row) -> str:
        return caption + ending(row.world) if named else caption

    negative = definition.negative
    return SetUp(
        name,
        tuple(chosen),
        tuple(ended(definition.caption(row), row) for row in chosen),
        None if negative is None else tuple(ended(negative(row), row) for row in chosen),
        tuple(dict.fromkeys(definition.candidates(chosen, endings))),
    )


def read_setups(
    path: str,
    setups: Sequence[str],
    world: str | None,
    background: bool = True,
    published: bool = False,
) -> list[SetUp]:
    """Reads the csv and makes set-ups of it, in the published order.

    Args:
        path: `labels.csv`.
        setups: Their names.
        world: The only background; None for all.
        background: Whether captions name the background.
        published: Whether to take no more images than the published script does.
    """
    rows = [as_row(values) for values in read_csv(path, COLUMNS, SOURCE)]
    worlds = dict.fromkeys(row.world for row in rows)
    if world is not None and world not in worlds:
        raise UserError(
            f"expected a world of {path} ({', '.join(worlds)}), got {world!r}: choose one, or "
            "leave it out"
        )
    rows = [row for row in rows if world in (None, row.world)]
    names = [name for name in DEFINITIONS if name in setups]
    return [make(name, rows, background, published) for name in names]
