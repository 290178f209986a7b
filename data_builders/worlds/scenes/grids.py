"""PUG's grids of factors (Bordes et al. 2023).

In: a spec and a size. Out: a scene for each cell.

Shapes stand for animals and classes, floors for backgrounds, colours for textures.
"""

import itertools
import random
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from typing_extensions import override

from data_builders.worlds.scenes.sampling import CLEARANCE, on_floor, sample_jitter, sample_scene
from data_builders.worlds.scenes.scene import (
    BACKGROUNDS,
    CAMERA_AZIMUTH,
    ORIGIN,
    SIZES,
    Scene,
    SceneObject,
    camera,
)
from data_builders.worlds.scenes.series import Series

BLANK = "blank"
FACTORS = ("Worlds", "Camera_Pitch", "Camera_Yaw", "Object_Yaw", "Object_Scale", "Object_Texture",
           "Scene_Light")  # fmt: skip
_RADIUS = 0.58  # of an animal at scale 1
_LARGE = 0.75  # radius of an object whose scale does not change
_LIGHT = CAMERA_AZIMUTH - 40.0
_MIN_OFFSET = 0.05  # minimum distance from the middle of the image, in image widths


@dataclass(frozen=True)
class Grid(Series):
    """A scene for each cell of a grid; a factor has at most `count` values."""

    count: int = 2

    @abstractmethod
    def files(self) -> tuple[str, ...]:
        """Returns the image file of each cell, relative to the images folder."""


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
    """PUG: SPAR's grid: no, one or two objects, each at its side of the image.

    The cells come `repeats` times; positions, sizes, materials, light and camera differ each time.
    """

    repeats: int = 1

    @cached_property
    def cells(self) -> list[SparCell]:
        """All combinations; "Blue" and "Red" only in a world that has both."""
        groups = [("Default", "Default", "left", "right"), ("Default", "Default", "bottom", "top")]
        if {"blue", "red"} <= set(self.spec.colors):
            groups.append(("Blue", "Red", "left", "right"))
        names = BLANK, *self.spec.shapes[: self.count]
        grid = itertools.product(groups, self.spec.floors[: self.count], names, names)
        cells = [SparCell(*group, world, first, second) for group, world, first, second in grid]
        return cells * self.repeats

    @override
    def files(self) -> tuple[str, ...]:
        return tuple(f"pug_spar/{k:06d}.png" for k in range(len(self.cells)))

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        cell = self.cells[index]
        jitter = sample_jitter(rng)
        view = camera(jitter)
        columns = ((cell.first, cell.texture, cell.side), (cell.second, cell.texture2, cell.side2))
        objects: list[SceneObject] = []
        fits = True
        for shape, texture, side in columns:
            if shape != BLANK:
                obj = self._object(shape, texture, side, rng)
                fits = fits and view.shows(obj) and _is_at(view.project(obj.center), side)
                objects.append(obj)
        if not fits or (len(objects) == 2 and objects[0].overlaps(objects[1], CLEARANCE)):
            return None
        background = rng.choice(self.spec.backgrounds)
        light = CAMERA_AZIMUTH + rng.uniform(-75.0, 75.0)
        return (Scene(tuple(objects), cell.world, background, light, jitter),)

    def _object(self, shape: str, texture: str, side: str, rng: random.Random) -> SceneObject:
        away, near = rng.uniform(1.2, 1.8), rng.uniform(-0.3, 0.3)
        right, behind = {
            "left": (-away, near),
            "right": (away, near),
            "bottom": (near, -away),
            "top": (near, 1.3 * away),
        }[side]
        size = rng.choice(self.spec.sizes)
        color = rng.choice(self.spec.colors) if texture == "Default" else texture.lower()
        obj = SceneObject(shape, color, rng.choice(self.spec.materials),
                          rng.choice(self.spec.textures), size, ORIGIN, SIZES[size],
                          rng.uniform(0.0, 360.0))  # fmt: skip
        return on_floor(obj, right, behind)


def _is_at(projected: tuple[float, float, float], side: str) -> bool:
    u, v, _ = projected
    return {"left": -u, "right": u, "bottom": -v, "top": v}[side] > _MIN_OFFSET


class PoseGrid(Grid):
    """PUG: ImageNet's grid: one object of each shape, while one factor changes at a time."""

    @cached_property
    def cells(self) -> list[tuple[str, str, int]]:
        """The factor, the shape and the number of the factor's value of each image."""
        return list(itertools.product(FACTORS, self.spec.shapes, range(self.count)))

    @override
    def files(self) -> tuple[str, ...]:
        return tuple(
            f"pug_imagenet/{factor}/{shape.capitalize()}/{factor}_{shape}_{value:03d}.png"
            for factor, shape, value in self.cells
        )

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        factor, shape, value = self.cells[index]
        fraction = value / max(1, self.count - 1)  # 0 to 1 over the values
        turn = 360.0 * value / self.count
        spec = self.spec
        color, material = spec.colors[-1], spec.materials[0]
        texture, radius, rotation = spec.textures[0], _LARGE, 20.0
        floor, background = spec.floors[0], spec.backgrounds[0]
        light, jitter = _LIGHT, ORIGIN
        if factor == "Worlds":
            worlds = list(itertools.product(BACKGROUNDS, spec.floors))
            background, floor = worlds[value % len(worlds)]
        elif factor == "Camera_Pitch":
            jitter = (0.0, 0.0, 4.0 * (fraction - 0.5))
        elif factor in ("Camera_Yaw", "Object_Yaw"):
            # A camera that circles the object looks like an object and a light that turn.
            rotation, light = rotation + turn, light + turn * (factor == "Camera_Yaw")
        elif factor == "Object_Scale":
            radius = 0.4 + 0.5 * fraction
        elif factor == "Object_Texture":
            surfaces = list(itertools.product(spec.materials, spec.textures, spec.colors))
            material, texture, color = surfaces[value * 7 % len(surfaces)]
        else:
            light = CAMERA_AZIMUTH + 150.0 * (fraction - 0.5)
        obj = _single(shape, color, material, texture, radius, rotation)
        return (Scene((obj,), floor, background, light, jitter),)


class AnimalCell(NamedTuple):
    """One image of PUG: Animals, by its columns."""

    world: str
    shape: str
    scale: float
    yaw: int
    texture: str


class AnimalGrid(Grid):
    """PUG: Animals' grid: one object of each shape in all worlds, sizes, textures and views."""

    @cached_property
    def cells(self) -> list[AnimalCell]:
        """All combinations; textures are the default one and up to two colours."""
        # The first colour is that of the default texture.
        textures = ["Default", *(color.capitalize() for color in self.spec.colors[1:3])]
        shapes, floors = self.spec.shapes[: self.count], self.spec.floors[: self.count]
        scales, yaws = (0.7, 1.0, 1.3), (0, 45)
        grid = itertools.product(floors, shapes, scales, yaws, textures)
        return [AnimalCell(*cell) for cell in grid]

    @override
    def files(self) -> tuple[str, ...]:
        return tuple(
            f"pug_animals/{cell.shape.capitalize()}/{k:06d}.png"
            for k, cell in enumerate(self.cells)
        )

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        cell, spec = self.cells[index], self.spec
        color = spec.colors[0] if cell.texture == "Default" else cell.texture.lower()
        obj = _single(cell.shape, color, spec.materials[0], spec.textures[0],
                      _RADIUS * cell.scale, 20.0 + cell.yaw)  # fmt: skip
        return (Scene((obj,), cell.world, spec.backgrounds[0], _LIGHT + cell.yaw),)


@dataclass(frozen=True)
class Singles(Grid):
    """Scenes of one object in a folder for each shape; they take turns, `count` scenes each."""

    folder: str = "classification"

    @override
    def files(self) -> tuple[str, ...]:
        return tuple(
            f"{self.folder}/{shape}/{shape}_{k:06d}.png"
            for k in range(self.count)
            for shape in self.spec.shapes
        )

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        shape = self.spec.shapes[index % len(self.spec.shapes)]
        spec = replace(self.spec, shapes=(shape,), min_objects=1, max_objects=1)
        return (sample_scene(spec, rng),)


def _single(
    shape: str, color: str, material: str, texture: str, radius: float, rotation: float
) -> SceneObject:
    size = min(SIZES, key=lambda name: abs(SIZES[name] - radius))
    obj = SceneObject(shape, color, material, texture, size, ORIGIN, radius, rotation)
    return obj.at(0.0, 0.0)
