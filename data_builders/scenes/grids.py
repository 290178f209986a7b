"""Grids of scenes that differ in named factors: PUG's SPAR, ImageNet and Animals, and single ones.

PUG (Bordes et al. 2023) combines all values of all factors; here shapes stand for animals and
classes, floors for backgrounds, and colours for textures.
"""

import itertools
import random
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from data_builders.scenes.constants import CAMERA_AZIMUTH
from data_builders.scenes.grammar import (
    BACKGROUNDS,
    SIZES,
    Scene,
    SceneObject,
    WorldSpec,
    camera,
    directions,
    half_height,
    in_view,
    overlap,
    sample_scene,
)
from data_builders.scenes.series import ItemSeries

BLANK = "blank"
FACTORS = (
    "Worlds",
    "Camera_Pitch",
    "Camera_Yaw",
    "Object_Yaw",
    "Object_Scale",
    "Object_Texture",
    "Scene_Light",
)
_RADIUS = 0.58  # of an animal at scale 1
_BIG = 0.75  # of an object whose scale does not change
_LIGHT = CAMERA_AZIMUTH - 40.0
_ASIDE = 0.05  # least distance from the middle of the picture, in image widths


@dataclass(frozen=True)
class Grid(ItemSeries):
    """A scene for each cell of a grid.

    Attributes:
        count: At most so many values of a factor.
    """

    count: int = 2

    def few(self, values: Sequence[str]) -> tuple[str, ...]:
        """Returns the first values of a factor."""
        return tuple(values[: self.count])

    @abstractmethod
    def files(self) -> tuple[str, ...]:
        """The image file of each cell, relative to the images folder."""


class SparCell(NamedTuple):
    """One image of PUG: SPAR, by its columns."""

    texture: str
    texture2: str
    side: str
    side2: str
    world: str
    first: str
    second: str


@dataclass(frozen=True)
class SparGrid(Grid):
    """PUG: SPAR's grid: none, one or two objects, each at its side of the picture."""

    @cached_property
    def cells(self) -> list[SparCell]:
        """Returns all combinations; "Blue" and "Red" only in a world that has both."""
        groups = [("Default", "Default", "left", "right"), ("Default", "Default", "bottom", "top")]
        if {"blue", "red"} <= set(self.spec.colors):
            groups.append(("Blue", "Red", "left", "right"))
        names = BLANK, *self.few(self.spec.shapes)
        grid = itertools.product(groups, self.few(self.spec.floors), names, names)
        return [SparCell(*group, world, first, second) for group, world, first, second in grid]

    def files(self) -> tuple[str, ...]:
        """See `Grid`."""
        return tuple(f"pug_spar/{k:06d}.png" for k in range(len(self.cells)))

    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        """See `ItemSeries`."""
        cell = self.cells[index]
        jitter = (rng.uniform(-0.4, 0.4), rng.uniform(-0.4, 0.4), rng.uniform(-0.4, 0.4))
        places = ((cell.first, cell.texture, cell.side), (cell.second, cell.texture2, cell.side2))
        things = tuple(
            self._thing(shape, texture, side, rng) for shape, texture, side in places
            if shape != BLANK
        )  # fmt: skip
        sides = [side for shape, _, side in places if shape != BLANK]
        view = camera(jitter)
        fits = all(
            in_view(thing, view) and _is_at(view.project(thing.center), side)
            for thing, side in zip(things, sides, strict=True)
        )
        if not fits or (len(things) == 2 and overlap(*things, gap=0.15)):
            return None
        background = rng.choice(self.spec.backgrounds)
        light = CAMERA_AZIMUTH + rng.uniform(-75.0, 75.0)
        return (Scene(things, cell.world, background, light, jitter),)

    def _thing(self, shape: str, texture: str, side: str, rng: random.Random) -> SceneObject:
        """An object at its side; a texture is a colour, and the default one is any."""
        away, near = rng.uniform(1.2, 1.8), rng.uniform(-0.3, 0.3)
        right, behind = {
            "left": (-away, near),
            "right": (away, near),
            "bottom": (near, -away),
            "top": (near, 1.3 * away),
        }[side]
        size = rng.choice(self.spec.sizes)
        color = rng.choice(self.spec.colors) if texture == "Default" else texture.lower()
        made = SceneObject(shape, color, rng.choice(self.spec.materials),
                           rng.choice(self.spec.textures), size, (0.0, 0.0, 0.0), SIZES[size],
                           rng.uniform(0.0, 360.0))  # fmt: skip
        axes = directions()
        x, y = (right * axes["right"][k] + behind * axes["behind"][k] for k in (0, 1))
        return replace(made, center=(x, y, half_height(made)))


def _is_at(projected: tuple[float, float, float], side: str) -> bool:
    """Tells whether a projected centre is at that side of the picture's middle."""
    u, v, _ = projected
    return {"left": -u, "right": u, "bottom": -v, "top": v}[side] > _ASIDE


class PoseCell(NamedTuple):
    """One image of PUG: ImageNet: which factor has which of its values."""

    factor: str
    shape: str
    value: int


@dataclass(frozen=True)
class PoseGrid(Grid):
    """PUG: ImageNet's grid: one object of each shape, while one factor changes at a time.

    The camera's roll and the object's pitch and roll are left out: everything stands on the floor.
    """

    @cached_property
    def cells(self) -> list[PoseCell]:
        """Returns factor by factor, shape by shape, `count` values each."""
        grid = itertools.product(FACTORS, self.spec.shapes, range(self.count))
        return [PoseCell(*cell) for cell in grid]

    def files(self) -> tuple[str, ...]:
        """See `Grid`."""
        return tuple(
            f"pug_imagenet/{factor}/{shape.capitalize()}/{factor}_{shape}_{value:03d}.png"
            for factor, shape, value in self.cells
        )

    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        """See `ItemSeries`."""
        factor, shape, value = self.cells[index]
        share = value / max(1, self.count - 1)  # 0 to 1 over the values
        turn = 360.0 * value / self.count
        spec = self.spec
        color, material = spec.colors[-1], spec.materials[0]
        texture, radius, rotation = spec.textures[0], _BIG, 20.0
        floor, background = spec.floors[0], spec.backgrounds[0]
        light, jitter = _LIGHT, (0.0, 0.0, 0.0)
        if factor == "Worlds":
            worlds = list(itertools.product(BACKGROUNDS, spec.floors))
            background, floor = worlds[value % len(worlds)]
        elif factor == "Camera_Pitch":
            jitter = (0.0, 0.0, 4.0 * (share - 0.5))
        elif factor in ("Camera_Yaw", "Object_Yaw"):
            # A camera that goes around is an object and a light that turn.
            rotation, light = rotation + turn, light + turn * (factor == "Camera_Yaw")
        elif factor == "Object_Scale":
            radius = 0.4 + 0.5 * share
        elif factor == "Object_Texture":
            looks = list(itertools.product(spec.materials, spec.textures, spec.colors))
            material, texture, color = looks[value * 7 % len(looks)]
        else:
            light = CAMERA_AZIMUTH + 150.0 * (share - 0.5)
        thing = _single(shape, color, material, texture, radius, rotation)
        return (Scene((thing,), floor, background, light, jitter),)


class AnimalCell(NamedTuple):
    """One image of PUG: Animals, by its columns."""

    world: str
    shape: str
    scale: float
    yaw: int
    texture: str


@dataclass(frozen=True)
class AnimalGrid(Grid):
    """PUG: Animals' grid: one object of each shape in all worlds, sizes, textures and views."""

    @cached_property
    def cells(self) -> list[AnimalCell]:
        """Returns all combinations; textures are the default one and up to two colours."""
        textures = ["Default", *(color.capitalize() for color in self.spec.colors[1:3])]
        shapes, floors = self.few(self.spec.shapes), self.few(self.spec.floors)
        grid = itertools.product(floors, shapes, (0.7, 1.0, 1.3), (0, 45), textures)
        return [AnimalCell(*cell) for cell in grid]

    def files(self) -> tuple[str, ...]:
        """See `Grid`."""
        return tuple(
            f"pug_animals/{cell.shape.capitalize()}/{k:06d}.png"
            for k, cell in enumerate(self.cells)
        )

    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        """See `ItemSeries`."""
        cell, spec = self.cells[index], self.spec
        color = spec.colors[0] if cell.texture == "Default" else cell.texture.lower()
        thing = _single(cell.shape, color, spec.materials[0], spec.textures[0],
                        _RADIUS * cell.scale, 20.0 + cell.yaw)  # fmt: skip
        return (Scene((thing,), cell.world, spec.backgrounds[0], _LIGHT + cell.yaw),)


@dataclass(frozen=True)
class Singles(Grid):
    """Scenes of one object; the shapes take turns, `count` scenes each."""

    def files(self) -> tuple[str, ...]:
        """See `Grid`."""
        return tuple(
            f"classification/{shape}/{shape}_{k:06d}.png"
            for k in range(self.count)
            for shape in self.spec.shapes
        )

    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        """See `ItemSeries`."""
        shape = self.spec.shapes[index % len(self.spec.shapes)]
        alone: WorldSpec = replace(self.spec, shapes=(shape,), min_objects=1, max_objects=1)
        return (sample_scene(alone, rng),)


def _single(
    shape: str, color: str, material: str, texture: str, radius: float, rotation: float
) -> SceneObject:
    """An object in the middle of the floor, turned by `rotation` degrees."""
    size = min(SIZES, key=lambda name: abs(SIZES[name] - radius))
    made = SceneObject(shape, color, material, texture, size, (0.0, 0.0, 0.0), radius, rotation)
    return replace(made, center=(0.0, 0.0, half_height(made)))
