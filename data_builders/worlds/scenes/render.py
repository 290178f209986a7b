"""A batched ray caster in plain torch.

In: scenes. Out: images, and measures of their objects. Never: pixels that depend on the batch.

Coordinates: nominal radius 1, rays o + t d, t the depth along the camera's axis. Arithmetic is
+ - * / sqrt, floor and comparisons, correctly rounded: pixels do not depend on the batch.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from data_builders.worlds.scenes import shading
from data_builders.worlds.scenes.geometry import CUT, NORMAL, dot3
from data_builders.worlds.scenes.scene import (
    COLORS,
    FOCAL,
    MATERIALS,
    TEXTURES,
    Camera,
    Scene,
    SceneObject,
    Vector,
    dot,
    subtract,
)
from vlmtune.errors import UserError

_SAMPLES_PER_CHUNK = {"cpu": 1 << 19, "cuda": 1 << 23}
_CASTERS = 2  # maximum number of shadows on one object
_ROW = 24  # table columns before the casters' rows
_CASTER_ROW = len(shading.NO_SHADOW)


@dataclass(frozen=True)
class Rendered:
    """A scene of K objects, its image, uint8 (size, size, 3), and measures of each object.

    `visible` and `unoccluded` (K) are fractions of the image that show the object, the second if it
    were alone; `boxes` (K, 4) x, y, w, h; `pixel_coords` (K, 3) x, y in pixels, and depth.
    """

    scene: Scene
    image: Tensor
    visible: Tensor
    unoccluded: Tensor
    boxes: Tensor
    pixel_coords: Tensor


@dataclass(frozen=True)
class _Item:
    """One object of a chunk: its image, slot, shape and size, window, and table row."""

    image: int
    slot: int
    key: tuple[str, str]
    window: tuple[int, int, int, int]
    row: list[float]


class _Hits(NamedTuple):
    """N hits: flat sample index, table index, depth, and (3, N) object points and normals."""

    sample: Tensor
    item: Tensor
    depth: Tensor
    point: Tensor
    normal: Tensor


def _axes(obj: SceneObject) -> tuple[Vector, Vector, Vector]:
    """The object's axes in the world; a standing torus has its axis horizontal."""
    angle = math.radians(obj.rotation)
    c, s = math.cos(angle), math.sin(angle)
    if obj.standing:
        return (-s, c, 0.0), (0.0, 0.0, 1.0), (c, s, 0.0)
    return (c, s, 0.0), (-s, c, 0.0), (0.0, 0.0, 1.0)


def _local(vector: Vector, axes: tuple[Vector, Vector, Vector], scale: float = 1.0) -> Vector:
    return dot(vector, axes[0]) * scale, dot(vector, axes[1]) * scale, dot(vector, axes[2]) * scale


def _interval(offset: float, depth: float, radius: float, flip: bool,
              width: int) -> tuple[int, int]:  # fmt: skip
    """Returns the sample range that a sphere's tangents span along one image axis."""
    squared = depth * depth - radius * radius
    if depth <= radius:
        return 0, width
    root = radius * math.sqrt(max(offset * offset + squared, 0.0))
    low, high = ((offset * depth + sign * root) / squared * FOCAL for sign in (-1.0, 1.0))
    if flip:
        low, high = -high, -low
    first = min(max(math.floor((low + 0.5) * width), 0), width - 1)
    return first, min(max(math.ceil((high + 0.5) * width), first + 1), width)


def _window(obj: SceneObject, view: Camera, width: int) -> tuple[int, int, int, int]:
    """Returns x, y, w, h of the samples whose rays may hit the object."""
    offset = subtract(obj.center, view.position)
    depth, radius = dot(offset, view.forward), obj.bounding_radius
    x0, x1 = _interval(dot(offset, view.right), depth, radius, False, width)
    y0, y1 = _interval(dot(offset, view.up), depth, radius, True, width)
    return x0, y0, x1 - x0, y1 - y0


def _casters(scene: Scene, index: int, light: Vector,
             axes: tuple[Vector, Vector, Vector]) -> list[float]:  # fmt: skip
    """Returns the rows of the objects that may shade object `index`, in that object's frame."""
    obj, near = scene.objects[index], []
    for other in scene.objects:
        offset = subtract(other.center, obj.center)
        along = dot(offset, light)
        if other is obj or along <= 0.0:
            continue
        miss = math.sqrt(max(dot(offset, offset) - along * along, 0.0))
        if miss < 1.1 * (obj.bounding_radius + other.bounding_radius):
            near.append((miss, other, offset))
    near.sort(key=lambda entry: entry[0])
    rows: list[float] = []
    scale = 1.0 / obj.radius
    for _, other, offset in near[:_CASTERS]:
        row = shading.shadow_row(other, _local(offset, axes, scale), _local(light, axes))
        row[3:5] = row[3] * obj.radius, row[4] * obj.radius
        rows += row
    return rows + shading.NO_SHADOW * (_CASTERS - len(near[:_CASTERS]))


def _item(scene: Scene, image: int, slot: int, width: int) -> _Item:
    obj, light, view = scene.objects[slot], shading.light_direction(scene), scene.view
    axes, scale = _axes(obj), 1.0 / obj.radius
    casters = _casters(scene, slot, light, axes)
    row = [
        *_local(subtract(view.position, obj.center), axes, scale),
        *_local(view.forward, axes, scale),
        *_local(view.right, axes, scale),
        *_local(view.up, axes, scale),
        *_local(light, axes),
        *_local((0.0, 0.0, 1.0), axes),
        *(c / 255.0 for c in COLORS[obj.color]),
        float(MATERIALS.index(obj.material)),
        float(TEXTURES.index(obj.texture)),
        float(casters[2] > -1e3),
        *casters,
    ]  # fmt: skip
    return _Item(image, slot, (obj.shape, obj.size), _window(obj, view, width), row)


def _cast(items: Sequence[_Item], first: int, table: Tensor, width: int) -> _Hits:
    """Intersects the windows of items of one shape, all padded to the widest and the highest."""
    device = table.device
    w = max(item.window[2] for item in items)
    h = max(item.window[3] for item in items)
    # Padded windows must stay inside the image, so they start earlier at its right and its bottom.
    starts = [(min(item.window[0], width - w), min(item.window[1], width - h)) for item in items]
    corners = torch.tensor(starts, device=device)
    xs = corners[:, :1] + torch.arange(w, device=device)
    ys = corners[:, 1:] + torch.arange(h, device=device)
    u = (((xs + 0.5) / width - 0.5) / FOCAL).unsqueeze(1)
    v = ((0.5 - (ys + 0.5) / width) / FOCAL).unsqueeze(2)
    # The camera in each object's frame, as `_item` lists it: origin, forward, right, up.
    columns = table[:12, first : first + len(items)]
    origin, forward, right, up = columns.reshape(4, 3, -1, 1, 1)
    direction = (forward + v * up) + u * right
    shape = items[0].key[0]
    depth = CUT[shape](origin, direction).flatten()
    flat = (depth < math.inf).nonzero().squeeze(1)
    images = torch.tensor([item.image for item in items], device=device).view(-1, 1, 1)
    samples = (images * (width * width) + ys.unsqueeze(2) * width) + xs.unsqueeze(1)
    t, local = depth[flat], flat // (w * h)
    point = columns[:3].index_select(1, local) + t * direction.flatten(1)[:, flat]
    return _Hits(samples.flatten()[flat], local + first, t, point, NORMAL[shape](point))


def _lit(hits: _Hits, table: Tensor) -> Tensor:
    """Returns the fraction of the direct light that reaches each hit."""
    lit = torch.ones_like(hits.depth)
    shaded = table[23].index_select(0, hits.item).nonzero().squeeze(1)
    item = hits.item[shaded]
    p = hits.point[:, shaded].unbind(0)
    left = torch.ones_like(p[0])
    for k in range(_CASTERS):
        start = _ROW + k * _CASTER_ROW
        rows = table[start : start + _CASTER_ROW].index_select(1, item)
        left = left * (1.0 - shading.shadow(p, rows.unbind(0)))
    return lit.index_copy_(0, shaded, left)


def _shade(hits: _Hits, table: Tensor) -> Tensor:
    # Columns of the table, as `_item` lists them.
    c = table[:23].index_select(1, hits.item)
    metal, pattern = c[21], c[22]
    offset = c[:3] - hits.point
    view = offset * (1.0 / dot3(offset, offset).sqrt())
    color = c[18:21] * shading.texture(hits.point, pattern)
    lit = _lit(hits, table)
    shaded = shading.surface(color, metal, hits.normal, view, c[12:15], c[15:18], lit)
    return shaded + 0.35 * metal * shading.streak(hits.point, view)


def _box_pool(values: Tensor, size: int, samples: int) -> Tensor:
    """Averages samples x samples cells of flat (..., B * width * width) values."""
    cells = values.view(*values.shape[:-1], -1, size, samples, size, samples)
    total = torch.zeros_like(cells[..., 0, :, 0])
    for i in range(samples):
        for j in range(samples):
            total = total + cells[..., i, :, j]
    return total / (samples * samples)


def _boxes(sample: Tensor, item: Tensor, count: int, width: int, samples: int) -> Tensor:
    """Returns (count, 4) pixel boxes x, y, w, h around each item's samples."""
    y = sample // width
    x, y = sample - y * width, y % width
    bounds = []
    for axis in (x, y):
        start = torch.full((count,), width, device=sample.device)
        low = start.scatter_reduce(0, item, axis, "amin") // samples
        high = (start - width).scatter_reduce(0, item, axis, "amax") // samples
        bounds.append((low, high - low + 1))
    seen = torch.bincount(item, minlength=count) > 0
    box = torch.stack([bounds[0][0], bounds[1][0], bounds[0][1], bounds[1][1]], 1)
    return box * seen.unsqueeze(1)


def _chunk(scenes: Sequence[Scene], size: int, samples: int,
           device: torch.device) -> list[Rendered]:  # fmt: skip
    width, count = size * samples, len(scenes)
    items: list[_Item] = []
    for b, scene in enumerate(map(_renderable, scenes)):
        items += [_item(scene, b, k, width) for k in range(len(scene.objects))]
    items.sort(key=lambda item: item.key)
    table = torch.tensor([item.row for item in items], device=device).t().contiguous()
    parts: list[_Hits] = []
    start = 0
    for _, alike in itertools.groupby(items, key=lambda item: item.key):
        same = list(alike)
        parts.append(_cast(same, start, table, width))
        start += len(same)
    hits = _Hits(*(torch.cat(column, dim=-1) for column in zip(*parts, strict=True)))
    # Of several hits of one sample the nearest wins.
    nearest = torch.full((count * width * width,), math.inf, device=device)
    nearest.scatter_reduce_(0, hits.sample, hits.depth, "amin")
    won = (nearest[hits.sample] == hits.depth).nonzero().squeeze(1)
    sample, item = hits.sample[won], hits.item[won]
    uncovered = _box_pool(nearest.isinf().to(torch.float32), size, samples)
    front = nearest.new_zeros((3, len(nearest)))
    front.index_copy_(1, sample, _shade(hits, table)[:, won].clamp(0.0, 1.0))
    channels = _box_pool(front, size, samples) + uncovered * shading.backdrop(scenes, size, device)
    images = (channels.permute(1, 2, 3, 0) * 255.0 + 0.5).clamp(0.0, 255.0).to(torch.uint8)
    counts = [len(scene.objects) for scene in scenes]
    real = [k for k, item in enumerate(items) if counts[item.image]]
    order = sorted(real, key=lambda k: (items[k].image, items[k].slot))

    def by_scene(values: Tensor) -> Sequence[Tensor]:
        return values[order].cpu().split(counts)

    rays = float(width * width)
    rows = zip(
        scenes,
        images.cpu(),
        by_scene(torch.bincount(item, minlength=len(items)).to(torch.float32) / rays),
        by_scene(torch.bincount(hits.item, minlength=len(items)).to(torch.float32) / rays),
        by_scene(_boxes(sample, item, len(items), width, samples)),
        strict=True,
    )
    return [Rendered(*row, _centres(row[0], size)) for row in rows]


def _centres(scene: Scene, size: int) -> Tensor:
    points = [scene.view.project(obj.center) for obj in scene.objects]
    return torch.tensor([((u + 0.5) * size, (0.5 - v) * size, depth) for u, v, depth in points])


def _renderable(scene: Scene) -> Scene:
    """The scene; an empty one gets an object far outside of the view."""
    if scene.objects:
        return scene
    hidden = SceneObject("sphere", "gray", "rubber", "plain", "small", (1e3, 1e3, 0.42), 0.42)
    return replace(scene, objects=(hidden,))


def render(scenes: Sequence[Scene], size: int, samples: int = 2,
           device: str | torch.device = "cpu") -> list[Rendered]:  # fmt: skip
    """Renders scenes to size x size pixels with samples x samples rays per pixel.

    The result of a scene depends only on the scene, `size`, `samples` and the kind of device.
    """
    if not 8 <= size <= 1024 or not 1 <= samples <= 8:
        raise UserError(
            f"size, samples: expected 8 to 1024 and 1 to 8, got {size}, {samples}; "
            "choose both in range"
        )
    target = torch.device(device)
    budget = _SAMPLES_PER_CHUNK["cpu" if target.type == "cpu" else "cuda"]
    step = max(1, budget // (size * samples) ** 2)
    rendered: list[Rendered] = []
    with torch.inference_mode():
        for k in range(0, len(scenes), step):
            rendered += _chunk(scenes[k : k + step], size, samples, target)
    return rendered
