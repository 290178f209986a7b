"""Where rays meet the five shapes.

In: rays o + t d. Out: the first hit t (inf if there is none), and normals.

Object space: nominal radius 1. Tensors broadcast; the first axis of points and directions has x, y
and z.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from data_builders.worlds.scenes.scene import EXTENTS

TUBE = EXTENTS["torus"][1]  # radius of the torus' tube
RING = 1.0 - TUBE  # radius of its centre line
_TORUS_STEPS = 14
_TORUS_TOLERANCE = 0.01


def dot3(a: Tensor, b: Tensor) -> Tensor:
    """Returns a . b; written out, because a reduction's order may change with the batch."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _slab(o: Tensor, d: Tensor, half: float) -> tuple[Tensor, Tensor]:
    inverse = 1.0 / d
    middle, reach = -o * inverse, half * inverse.abs()
    return middle - reach, middle + reach


def _roots(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the roots of a t^2 + 2 b t + c = 0 for a > 0, NaN where there are none."""
    root = (b * b - a * c).sqrt()
    return (-b - root) / a, (-b + root) / a


def _span(enter: Tensor, leave: Tensor) -> Tensor:
    # A NaN bound compares false and becomes a miss.
    return torch.where((enter < leave) & (enter > 0.0), enter, math.inf)


def cut_sphere(o: Tensor, d: Tensor) -> Tensor:
    """|p| = 1."""
    return _span(*_roots(dot3(d, d), dot3(o, d), dot3(o, o) - 1.0))


def cut_cube(o: Tensor, d: Tensor) -> Tensor:
    """|x|, |y|, |z| <= sqrt(1/2)."""
    enter, leave = _slab(o, d, EXTENTS["cube"][1])
    # Inside the cube is inside all three slabs: after the last entry, before the first exit.
    return _span(enter.amax(0), leave.amin(0))


def _cut_tube(o: Tensor, d: Tensor, radius: float, half: float) -> tuple[Tensor, Tensor]:
    """Returns where the ray enters and leaves the capped cylinder."""
    # Seen from above the side is a circle: |o + t d|^2 = r^2 in x and y alone.
    a = d[0] * d[0] + d[1] * d[1]
    b = o[0] * d[0] + o[1] * d[1]
    c = o[0] * o[0] + o[1] * o[1] - radius * radius
    side = _roots(a, b, c)
    caps = _slab(o[2], d[2], half)
    return torch.maximum(side[0], caps[0]), torch.minimum(side[1], caps[1])


def cut_cylinder(o: Tensor, d: Tensor) -> Tensor:
    """x^2 + y^2 <= a^2 and |z| <= h."""
    return _span(*_cut_tube(o, d, *EXTENTS["cylinder"]))


def cut_cone(o: Tensor, d: Tensor) -> Tensor:
    """x^2 + y^2 <= k^2 (h - z)^2 and |z| <= h, with k = a / (2 h).

    Rays must be flatter than the cone's side (a > 0), as in this world; both roots are on a nappe.
    """
    radius, half = EXTENTS["cone"]
    k = radius / (2.0 * half)
    ox, oy, oz = o[0], o[1], (o[2] - half) * k
    dz = d[2] * k
    side = _roots(
        d[0] * d[0] + d[1] * d[1] - dz * dz,
        ox * d[0] + oy * d[1] - oz * dz,
        ox * ox + oy * oy - oz * oz,
    )
    caps = _slab(o[2], d[2], half)
    return _span(torch.maximum(side[0], caps[0]), torch.minimum(side[1], caps[1]))


def cut_torus(o: Tensor, d: Tensor) -> Tensor:
    """(sqrt(x^2 + y^2) - R)^2 + z^2 = r^2, by sphere tracing inside the bounding cylinder."""
    enter, leave = _cut_tube(o, d, 1.0, TUBE)
    missed = ~((enter < leave) & (enter > 0.0))
    per_unit = 1.0 / dot3(d, d).sqrt()
    t = torch.where(missed, 0.0, enter)
    gap = t
    for _ in range(_TORUS_STEPS):
        x, y, z = o + t * d
        ring = (x * x + y * y).sqrt() - RING
        gap = (ring * ring + z * z).sqrt() - TUBE
        t = t + gap * per_unit
    return torch.where(missed | (gap > _TORUS_TOLERANCE) | (t > leave), math.inf, t)


def normal_cube(p: Tensor) -> Tensor:
    """Returns the axis of largest |p|, with its sign."""
    x, y, z = p.abs()
    # On an edge the first of z, x, y wins, so that a point has one normal.
    top = (z >= x) & (z >= y)
    side = ~top & (x >= y)
    return p.sign() * torch.stack([side, ~(top | side), top]).float()


def normal_cylinder(p: Tensor) -> Tensor:
    """Returns the normal of the cap or the side, whichever is nearer to p."""
    radius, half = EXTENTS["cylinder"]
    rho = (p[0] * p[0] + p[1] * p[1]).sqrt()
    cap = half - p[2].abs() < radius - rho
    scale = (~cap).float() / rho.clamp_min(1e-6)
    return torch.stack([p[0] * scale, p[1] * scale, p[2].sign() * cap.float()])


def normal_cone(p: Tensor) -> Tensor:
    """Returns the slope's normal; the base faces down and is never seen."""
    radius, half = EXTENTS["cone"]
    k = radius / (2.0 * half)
    flat = 1.0 / math.sqrt(1.0 + k * k)
    scale = flat / (p[0] * p[0] + p[1] * p[1]).sqrt().clamp_min(1e-6)
    return torch.stack([p[0] * scale, p[1] * scale, torch.full_like(p[2], k * flat)])


def normal_torus(p: Tensor) -> Tensor:
    """Returns (p - nearest point of the centre line) / r."""
    rho = (p[0] * p[0] + p[1] * p[1]).sqrt().clamp_min(1e-6)
    scale = (1.0 - RING / rho) / TUBE
    return torch.stack([p[0] * scale, p[1] * scale, p[2] / TUBE])


CUT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cube": cut_cube, "sphere": cut_sphere, "cylinder": cut_cylinder, "cone": cut_cone,
    "torus": cut_torus,
}  # fmt: skip
NORMAL: dict[str, Callable[[Tensor], Tensor]] = {
    "cube": normal_cube, "sphere": lambda p: p, "cylinder": normal_cylinder, "cone": normal_cone,
    "torus": normal_torus,
}  # fmt: skip
