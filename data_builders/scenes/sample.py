"""Scenes and their images drawn together, so that every object is certain to be seen."""

from __future__ import annotations

import random
from dataclasses import fields

import torch
from torch import Tensor

from data_builders.scenes.grammar import Scene, WorldSpec, sample_scene
from data_builders.scenes.render import Rendered, render

MAX_ATTEMPTS = 100


def _draw(spec: WorldSpec, seed: int, index: int, attempt: int) -> Scene:
    return sample_scene(spec, random.Random(f"{seed}:{index}:{attempt}"))


def _seen(scenes: list[Scene], rendered: Rendered, least: float, exposed: float) -> list[bool]:
    """Tell for each scene whether all its objects are visible enough."""
    fit = (rendered.visible >= least) & (rendered.visible >= exposed * rendered.unoccluded)
    return [all(row[: len(s.objects)]) for s, row in zip(scenes, fit.tolist(), strict=True)]


def _widened(value: Tensor, slots: int) -> Tensor:
    """Pad dimension 1 with zeros to `slots`, whatever objects the batch happened to hold."""
    wide = value.new_zeros((value.shape[0], slots, *value.shape[2:]))
    wide[:, : value.shape[1]] = value
    return wide


def _pick(rendered: Rendered, rows: list[int], slots: int) -> list[Tensor]:
    index = torch.tensor(rows, device=rendered.images.device)
    values = [getattr(rendered, f.name).index_select(0, index) for f in fields(Rendered)]
    return [values[0], *(_widened(v, slots) for v in values[1:])]


def make_scenes(
    spec: WorldSpec,
    seed: int,
    start: int,
    count: int,
    size: int,
    samples: int = 2,
    device: str | torch.device = "cpu",
    min_visible: float | None = None,
) -> tuple[list[Scene], Rendered]:
    """Draw and render the scenes start .. start + count - 1 of the endless series of `seed`.

    Attempt a of scene i draws from random.Random(f"{seed}:{i}:{a}"); it is redrawn while an
    object shows on less than `min_visible` of the image, or on less than spec.min_exposed of its
    own silhouette. Scene i is hence the same for every start and count; as the shares are counted
    in rays, it may differ between sizes and sample counts.

    Args:
        spec: what to draw.
        seed: names the series.
        start: first index.
        count: number of scenes.
        size: image side in pixels.
        samples: rays per pixel and axis.
        device: where to render.
        min_visible: overrides spec.min_visible.

    Returns:
        The scenes, and their images and measures with K = spec.max_objects.
    """
    if count < 1 or start < 0:
        raise ValueError(
            f"start, count: expected start >= 0 and count >= 1, got {start}, {count}; "
            "ask for at least one scene"
        )
    least = spec.min_visible if min_visible is None else min_visible
    scenes: dict[int, Scene] = {}
    rows: dict[int, int] = {}
    parts: list[list[Tensor]] = []
    pending = list(range(start, start + count))
    for attempt in range(MAX_ATTEMPTS):
        drawn = [_draw(spec, seed, index, attempt) for index in pending]
        rendered = render(drawn, size, samples, device)
        seen = _seen(drawn, rendered, least, spec.min_exposed)
        kept = [k for k, fine in enumerate(seen) if fine]
        for k in kept:
            scenes[pending[k]], rows[pending[k]] = drawn[k], len(rows)
        if kept:
            parts.append(_pick(rendered, kept, spec.max_objects))
        pending = [index for index, fine in zip(pending, seen, strict=True) if not fine]
        if not pending:
            break
    else:
        raise ValueError(
            f"min_visible: expected every object on at least {least} of the image, got none such "
            f"in {MAX_ATTEMPTS} draws of scene {pending[0]}; lower it or max_objects"
        )
    order = torch.tensor([rows[i] for i in sorted(rows)], device=parts[0][0].device)
    merged = [torch.cat(values).index_select(0, order) for values in zip(*parts, strict=True)]
    return [scenes[i] for i in sorted(scenes)], Rendered(*merged)
