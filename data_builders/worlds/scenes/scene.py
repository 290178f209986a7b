"""One scene: its vocabulary, objects, extents and camera.

In: values of a scene. Out: sizes, positions and projections. Never: a sample, or a pixel.

Coordinates are right-handed, z up, the floor at z = 0.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Le

Vector = tuple[float, float, float]
Rgb = tuple[int, int, int]

SHAPES = ("cube", "sphere", "cylinder", "cone", "torus")
COLORS: dict[str, Rgb] = {"gray": (87, 87, 87), "red": (173, 35, 35), "blue": (42, 75, 215),
                          "green": (29, 105, 20), "brown": (129, 74, 25), "purple": (129, 38, 192),
                          "cyan": (41, 208, 208), "yellow": (255, 238, 51)}  # fmt: skip
MATERIALS = ("rubber", "metal")
TEXTURES = ("plain", "striped", "checkered")
SIZES: dict[str, float] = {"small": 0.42, "large": 0.75}  # nominal radius
FLOORS: dict[str, Rgb] = {"concrete": (168, 168, 166), "wood": (186, 168, 148),
                          "grass": (160, 174, 150), "sand": (204, 194, 170),
                          "tiles": (186, 190, 198)}  # fmt: skip
BACKGROUNDS: dict[str, tuple[Rgb, Rgb]] = {  # colour at the floor's far edge, colour at the top
    "studio": ((228, 228, 228), (150, 150, 152)),
    "sky": ((216, 228, 238), (140, 170, 204)),
    "dusk": ((226, 202, 188), (128, 116, 142)),
    "wall": ((206, 202, 192), (186, 182, 172)),
}
EXTENTS: dict[str, tuple[float, float]] = {
    # Ground-plane radius and half height, in units of the nominal radius.
    "cube": (1.0, math.sqrt(0.5)),
    "sphere": (1.0, 1.0),
    "cylinder": (0.8, 0.8),
    "cone": (0.9, 0.85),
    "torus": (1.0, 0.32),
}


# The types of arguments: each is one of some names. For pyright they are plain strings, as names in
# scenes are.
if TYPE_CHECKING:
    Shape = Color = Material = Texture = Size = Floor = Background = str
else:
    Shape = Literal[SHAPES]
    Color = Literal[tuple(COLORS)]
    Material = Literal[MATERIALS]
    Texture = Literal[TEXTURES]
    Size = Literal[tuple(SIZES)]
    Floor = Literal[tuple(FLOORS)]
    Background = Literal[tuple(BACKGROUNDS)]
Side = Annotated[int, Ge(8), Le(1024)]
"""Pixels of a side of an image."""
Rays = Annotated[int, Ge(1), Le(8)]
"""Rays per pixel and axis."""

SUPPORTS = ("cube", "cylinder")  # shapes with a flat top that another object can stand on
GROUND_RELATIONS = ("left", "right", "front", "behind")
MAX_OBJECTS = 8  # more do not fit into the view without heavy occlusion

CAMERA_DISTANCE = 16.0
CAMERA_PITCH = 30.0  # degrees below the horizon
CAMERA_AZIMUTH = -45.0  # degrees, counter-clockwise from +x
ORIGIN: Vector = (0.0, 0.0, 0.0)
CAMERA_TARGET: Vector = (0.0, 0.0, 0.4)
FOCAL = 3.17  # focal length in units of the image width

_PLUMB = 0.2  # maximum distance on the ground, in world units, of an object from what is below it
_FRAME = 0.48  # objects stay within this distance of the image centre, in image widths


@dataclass(frozen=True)
class SceneObject:
    """One object; `center` is the middle of its height, `on` the index of its support."""

    shape: str
    color: str
    material: str
    texture: str
    size: str
    center: Vector
    radius: float
    rotation: float = 0.0
    on: int | None = None
    standing: bool = False  # a torus on its rim instead of lying flat

    @property
    def half_height(self) -> float:
        """Half the object's height."""
        return self.radius * (1.0 if self.standing else EXTENTS[self.shape][1])

    @property
    def ground_radius(self) -> float:
        """The radius of the object's bounding circle seen from above."""
        return self.radius * EXTENTS[self.shape][0]

    @property
    def bounding_radius(self) -> float:
        """The radius of the bounding sphere around `center`."""
        if self.shape in ("sphere", "torus"):
            return self.radius
        return math.hypot(self.ground_radius, self.half_height)

    @property
    def touches_floor(self) -> bool:
        """Whether the object's lowest point is at z = 0."""
        return self.center[2] <= self.half_height + 1e-6

    @property
    def top(self) -> float:
        """The height of the object's highest point."""
        return self.center[2] + self.half_height

    def at(self, x: float, y: float, bottom: float = 0.0) -> "SceneObject":
        """Returns the object at another place, its lowest point so far above the floor."""
        return replace(self, center=(x, y, bottom + self.half_height))

    def overlaps(self, other: "SceneObject", gap: float = 0.0) -> bool:
        """Tells whether the bounding upright cylinders of both are closer than `gap` sideways."""
        flat = math.hypot(self.center[0] - other.center[0], self.center[1] - other.center[1])
        heights = self.half_height + other.half_height
        clear = abs(self.center[2] - other.center[2]) >= heights - 1e-6
        return not clear and flat < self.ground_radius + other.ground_radius + gap

    def floats_over(self, other: "SceneObject") -> bool:
        """Tells whether this one hangs in the air over the other, at one place on the ground."""
        aside = math.hypot(self.center[0] - other.center[0], self.center[1] - other.center[1])
        gap = self.center[2] - self.half_height - other.center[2] - other.half_height
        return self.on is None and gap > 0.0 and aside < _PLUMB


@dataclass(frozen=True)
class Scene:
    """A whole scene; `light_azimuth` in degrees, `jitter` is added to the camera's position."""

    objects: tuple[SceneObject, ...]
    floor: str = "concrete"
    background: str = "studio"
    light_azimuth: float = CAMERA_AZIMUTH - 40.0
    jitter: Vector = ORIGIN

    @property
    def view(self) -> "Camera":
        """The camera of the scene."""
        return camera(self.jitter)


@dataclass(frozen=True)
class Camera:
    """A pinhole camera: position and orthonormal right, up and forward axes."""

    position: Vector
    right: Vector
    up: Vector
    forward: Vector

    @cached_property
    def axes(self) -> Mapping[str, Vector]:
        """CLEVR's six unit vectors: the camera's axes projected onto the ground, and z."""
        x, y, _ = self.right
        return {
            "right": self.right,
            "left": (-x, -y, 0.0),
            "behind": (-y, x, 0.0),
            "front": (y, -x, 0.0),
            "above": (0.0, 0.0, 1.0),
            "below": (0.0, 0.0, -1.0),
        }

    def project(self, point: Vector) -> Vector:
        """Returns (u, v, depth): u to the right and v up, in image widths from the centre."""
        offset = subtract(point, self.position)
        depth = dot(offset, self.forward)
        scale = FOCAL / depth if depth != 0.0 else math.inf
        return dot(offset, self.right) * scale, dot(offset, self.up) * scale, depth

    def shows(self, obj: SceneObject) -> bool:
        """Tells whether the object's bounding sphere projects into the frame."""
        u, v, depth = self.project(obj.center)
        reach = FOCAL * obj.bounding_radius / max(depth - obj.bounding_radius, 1e-6)
        return depth > 0.0 and max(abs(u), abs(v)) + reach <= _FRAME


def dot(a: Vector, b: Vector) -> float:
    """Returns a . b."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def subtract(a: Vector, b: Vector) -> Vector:
    """Returns a - b."""
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


def camera_position(azimuth: float, pitch: float, distance: float) -> Vector:
    """Returns the point at this distance from CAMERA_TARGET; angles in degrees."""
    turn, rise = math.radians(azimuth), math.radians(pitch)
    ground = distance * math.cos(rise)
    return (
        CAMERA_TARGET[0] + ground * math.cos(turn),
        CAMERA_TARGET[1] + ground * math.sin(turn),
        CAMERA_TARGET[2] + distance * math.sin(rise),
    )


def camera_offset(
    turn: float = 0.0, pitch: float = CAMERA_PITCH, distance: float = CAMERA_DISTANCE
) -> Vector:
    """Returns how far from its usual position a camera is that is turned, in degrees, or moved."""
    usual = camera_position(CAMERA_AZIMUTH, CAMERA_PITCH, CAMERA_DISTANCE)
    return subtract(camera_position(CAMERA_AZIMUTH + turn, pitch, distance), usual)


# Captions ask for the axes of one scene hundreds of times.
@lru_cache(maxsize=256)
def camera(jitter: Vector = ORIGIN) -> Camera:
    """Returns the camera at its nominal position + jitter, aimed at CAMERA_TARGET, without roll."""
    nominal = camera_position(CAMERA_AZIMUTH, CAMERA_PITCH, CAMERA_DISTANCE)
    position = (nominal[0] + jitter[0], nominal[1] + jitter[1], nominal[2] + jitter[2])
    x, y, z = subtract(CAMERA_TARGET, position)
    length = math.sqrt(x * x + y * y + z * z)
    flat = math.hypot(x, y)
    forward = (x / length, y / length, z / length)
    # Level, as the camera has no roll; `up` is then right x forward.
    right = (y / flat, -x / flat, 0.0)
    up = (-forward[2] * x / flat, -forward[2] * y / flat, flat / length)
    return Camera(position, right, up, forward)
