"""Light, shadows and surface colours.

In: points and directions. Out: colours in 0..1. Never: a tensor operation that is not correctly
rounded.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from data_builders.worlds.scenes.geometry import dot3
from data_builders.worlds.scenes.scene import (
    BACKGROUNDS,
    CAMERA_TARGET,
    FLOORS,
    FOCAL,
    Scene,
    SceneObject,
    Vector,
    camera,
)

_SHADOW_RADII: dict[str, tuple[float, float]] = {
    # Half axes of the spheroid that casts the shadow, in nominal radii. For the angular shapes they
    # lie between the inscribed and the bounding spheroid, whose shadow would be too wide.
    "cube": (0.86, 0.8),
    "sphere": (1.0, 1.0),
    "cylinder": (0.88, 0.88),
    "cone": (0.68, 0.9),
    "torus": (1.0, 0.4),
}
_STANDING_RADII = (0.72, 1.0)
_PATTERN: dict[str, tuple[float, float, float]] = {
    # Strength of planks, grid lines and mottling.
    "concrete": (0.0, 0.0, 0.12),
    "wood": (0.07, 0.0, 0.06),
    "grass": (0.0, 0.0, 0.16),
    "sand": (0.0, 0.0, 0.12),
    "tiles": (0.03, 0.12, 0.03),
}
_STRIPE, _CHECK = 0.46, 0.62  # widths in nominal radii
_STRIPE_AXIS = tuple(w / _STRIPE for w in (0.36, 0.48, 0.8))
_LIGHT_ELEVATION = 50.0  # degrees
_FLOOR_EDGE = 4.2  # the floor ends this far behind the target
_EDGE_TURN = 0.99  # cosine: the floor's edge turns with a camera that has turned farther
_DARK, _BRIGHT = 0.42, 1.2  # the two shades of a texture, as multiples of the base colour


def light_direction(scene: Scene) -> Vector:
    """Returns the unit vector that points to the light."""
    azimuth, elevation = math.radians(scene.light_azimuth), math.radians(_LIGHT_ELEVATION)
    flat = math.cos(elevation)
    return flat * math.cos(azimuth), flat * math.sin(azimuth), math.sin(elevation)


def shadow_row(obj: SceneObject, center: Vector, light: Vector) -> list[float]:
    """Returns (center, 1/a, 1/h, light in the scaled space) in the frame of both."""
    radii = _STANDING_RADII if obj.standing else _SHADOW_RADII[obj.shape]
    flat, high = (radius * obj.radius for radius in radii)
    x, y, z = light[0] / flat, light[1] / flat, light[2] / high
    norm = math.sqrt(x * x + y * y + z * z)
    return [*center, 1.0 / flat, 1.0 / high, x / norm, y / norm, z / norm]


NO_SHADOW = [0.0, 0.0, -1e4, 1.0, 1.0, 0.0, 0.0, 1.0]  # a spheroid far below the floor


def shadow(p: Sequence[Tensor | float], row: Sequence[Tensor]) -> Tensor:
    """Returns the fraction of the light that the spheroid takes from p.

    Where the spheroid is the unit sphere, the ray w + s l passes it at sqrt(|w|^2 - (w.l)^2); the
    penumbra around 1 widens with the distance -w.l to there.
    """
    cx, cy, cz, flat, high, lx, ly, lz, *_ = row  # as `shadow_row` lists it
    wx = (p[0] - cx) * flat
    wy = (p[1] - cy) * flat
    wz = (p[2] - cz) * high
    ahead = -(wx * lx + wy * ly + wz * lz)
    squared = wx * wx + wy * wy + wz * wz
    miss = (squared - ahead * ahead).clamp_min(0.0).sqrt()
    soft = 0.12 + 0.07 * ahead.clamp_min(0.0)
    inside = ((1.0 + soft - miss) / (2.0 * soft)).clamp(0.0, 1.0)
    # A point behind the spheroid's middle, seen from the light, is in no shadow of it.
    depth = inside * (4.0 * ahead).clamp(0.0, 1.0)
    return depth * depth * (3.0 - 2.0 * depth)


def _parity(x: Tensor) -> Tensor:
    """Returns floor(x) mod 2."""
    half = x.floor() * 0.5
    return (half - half.floor()) * 2.0


def texture(p: Tensor, kind: Tensor) -> Tensor:
    """Returns the multiple of the base colour at object points p; kind 0, 1, 2 as in TEXTURES."""
    axis = _STRIPE_AXIS
    stripe = _parity(p[0] * axis[0] + p[1] * axis[1] + p[2] * axis[2])
    cells = ((p + 10.25 * _CHECK) / _CHECK).floor()
    check = _parity(cells[0] + cells[1] + cells[2])
    odd = torch.where(kind > 1.5, check, stripe)
    patterned = _BRIGHT + (_DARK - _BRIGHT) * odd
    return torch.where(kind > 0.5, patterned, 1.0)


def surface(color: Tensor, metal: Tensor, n: Tensor, view: Tensor, light: Tensor, up: Tensor,
            lit: Tensor) -> Tensor:  # fmt: skip
    """Returns the three shaded channels.

    Rubber is diffuse with a faint highlight; metal adds a tinted reflection and a white highlight.
    """
    toward, facing, rise = dot3(n, light), dot3(n, view), dot3(n, up)
    diffuse = toward.clamp_min(0.0) * lit
    mirror = 2.0 * facing * rise - dot3(view, up)  # height of the reflected view direction
    sky = (0.5 + 2.5 * (mirror - 0.1)).clamp(0.0, 1.0)
    half = (toward + facing) / (2.0 + 2.0 * dot3(view, light)).clamp_min(1e-6).sqrt()
    gloss = half.clamp_min(0.0)
    for _ in range(4):
        gloss = gloss * gloss
    sharp = gloss * gloss * gloss
    rubber = 0.5 + 0.14 * rise + 0.62 * diffuse
    shiny = 0.3 + 0.42 * diffuse + (0.2 + 0.55 * sky) * (1.25 - 0.5 * facing)
    gain = rubber + metal * (shiny - rubber)
    white = (0.1 * gloss + metal * (0.95 * sharp - 0.1 * gloss)) * lit
    white = white + metal * 0.05 * sky
    return color * gain + white


def streak(p: Tensor, view: Tensor) -> Tensor:
    """Returns 0..1: a slanted band of light, like a lamp, without which metal looks like rubber."""
    across = view[0] * p[1] - view[1] * p[0]
    return (1.0 - 5.0 * (across - 0.3 * p[2] + 0.28).abs()).clamp_min(0.0)


def _wave(x: Tensor) -> Tensor:
    return (x - x.floor() - 0.5).abs() * 2.0


def floor_pattern(x: Tensor, y: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Returns the floor's brightness factor around 1 at ground points (x, y)."""
    plank, grid, mottle = weights
    planks = _parity(x / 0.9) - 0.5
    # A line wherever either coordinate is near a multiple of a tile's width.
    to_line = torch.minimum(_wave(x / 1.8), _wave(y / 1.8))
    lines = to_line.lt(0.06).to(x.dtype)
    # Waves bent by waves: smooth patches that repeat too far apart to see.
    mixed = _wave(0.9 * x + 0.8 * _wave(0.6 * y)) * _wave(1.1 * y + 0.7 * _wave(0.8 * x))
    return 1.0 + plank * planks - grid * lines + mottle * (mixed - 0.3)


def _edge(scene: Scene) -> float:
    """Returns v of the floor's far edge; the camera has no roll, so it is one image row."""
    behind = camera().axes["behind"]
    along = scene.view.axes["behind"]
    turn = along[0] * behind[0] + along[1] * behind[1]
    reach = _FLOOR_EDGE * max(turn, _EDGE_TURN)
    point = (CAMERA_TARGET[0] + reach * along[0], CAMERA_TARGET[1] + reach * along[1], 0.0)
    return scene.view.project(point)[1]


def backdrop(scenes: Sequence[Scene], size: int, device: torch.device) -> Tensor:
    """Returns floor and background with shadows but no objects, (3, B, size, size).

    One sample per pixel; the floor's edge is blended by the exact coverage of its pixel row.
    """
    steps = (torch.arange(size, device=device, dtype=torch.float32) + 0.5) / size
    u = ((steps - 0.5) / FOCAL).view(1, 1, -1)
    v = ((0.5 - steps) / FOCAL).view(1, -1, 1)
    # Where the ray of a pixel meets the floor; the camera has no roll, so depth varies by row.
    views = [scene.view for scene in scenes]
    cameras = [[*v.position, *v.right, *v.up, *v.forward] for v in views]
    columns = torch.tensor(cameras, device=device).t()
    position, right, up, forward = columns.reshape(4, 3, -1, 1, 1)
    t = position[2] / (-(forward[2] + v * up[2])).clamp_min(0.05)
    x, y, _ = (position + t * (forward + v * up)) + t * right * u
    patterns = torch.tensor([_PATTERN[scene.floor] for scene in scenes], device=device)
    shade = floor_pattern(x, y, _by_image(patterns)) * _floor_light(scenes, x, y)
    edge = torch.tensor(list(map(_edge, scenes)), device=device).view(-1, 1, 1)
    cover = ((edge - v * FOCAL) * size + 0.5).clamp(0.0, 1.0)
    rise = ((v * FOCAL - edge) / (0.5 - edge)).clamp(0.0, 1.0)
    rows = []
    for scene in scenes:
        near, high = BACKGROUNDS[scene.background]
        rows.append((*FLOORS[scene.floor], *near, *high))
    colors = torch.tensor(rows, device=device, dtype=torch.float32) / 255.0
    ground, near, high = colors.t().reshape(3, 3, -1, 1, 1)
    far = near + (high - near) * rise
    return far + cover * (ground * shade - far)


def _by_image(table: Tensor) -> list[Tensor]:
    """The columns of a table with a row for each image, to broadcast over its pixels."""
    return [column.view(-1, 1, 1) for column in table.unbind(1)]


def _floor_light(scenes: Sequence[Scene], x: Tensor, y: Tensor) -> Tensor:
    """Returns the remaining light at ground points (x, y) after shadows and contact darkening."""
    lit = torch.ones_like(x)
    for slot in range(max(len(s.objects) for s in scenes)):
        # Slot by slot, so that only scenes with that many objects are computed.
        chosen = [k for k, s in enumerate(scenes) if len(s.objects) > slot]
        rows = []
        for k in chosen:
            obj = scenes[k].objects[slot]
            row = shadow_row(obj, obj.center, light_direction(scenes[k]))
            rows.append([*row, float(obj.touches_floor)])
        columns = _by_image(torch.tensor(rows, device=x.device))
        index = torch.tensor(chosen, device=x.device)
        px, py = x.index_select(0, index), y.index_select(0, index)
        dx, dy = (px - columns[0]) * columns[3], (py - columns[1]) * columns[3]
        near = (1.0 - (dx * dx + dy * dy) * 0.45).clamp_min(0.0) * columns[8]
        left = (1.0 - 0.55 * shadow((px, py, 0.0), columns)) * (1.0 - 0.3 * near)
        lit.index_copy_(0, index, lit.index_select(0, index) * left)
    return lit
