"""Series of scenes that are drawn item by item: an item is one scene, twins, or a video."""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch

from data_builders.scenes.drawing import Canvas
from data_builders.scenes.grammar import Scene, SceneObject, WorldSpec
from data_builders.scenes.render import Rendered, render

_DRAWS = 400  # of one item, before the world is said not to hold such items


@dataclass(frozen=True)
class ItemSeries(ABC):
    """Scenes k i .. k i + k - 1 are item i, where k is `scenes`.

    Attributes:
        spec: What may stand in the scenes.
        seed: Names the series.
        scenes: How many scenes an item has.
    """

    spec: WorldSpec
    seed: int
    scenes: ClassVar[int] = 1

    @abstractmethod
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        """Draws item `index`, or returns None where this draw gives none."""

    def draw(self, start: int, count: int, canvas: Canvas) -> tuple[list[Scene], Rendered]:
        """See `Series`; an item is redrawn until every object of all its scenes can be seen."""
        each = self.scenes
        if start % each or count % each:
            wanted = "even numbers" if each == 2 else f"multiples of {each}"
            raise ValueError(
                f"start, count: expected {wanted}, as an item has {each} scenes, got {start}, "
                f"{count}; ask for whole items"
            )
        kept: dict[int, tuple[tuple[Scene, ...], Rendered]] = {}
        pending, tries = list(range(start // each, (start + count) // each)), dict[int, int]()
        while pending:
            drawn = [self._next(index, tries) for index in pending]
            rendered = render(
                [_drawable(s) for item in drawn for s in item],
                canvas.size,
                canvas.samples,
                canvas.device,
            )
            seen = _seen(rendered, drawn, self.spec)
            for k, index in enumerate(pending):
                if seen[k]:
                    kept[index] = drawn[k], _rows(rendered, each * k, each, self.spec.max_objects)
            pending = [index for index in pending if index not in kept]
        items = [kept[index] for index in sorted(kept)]
        return [s for item, _ in items for s in item], _joined([rows for _, rows in items])

    def _next(self, index: int, tries: dict[int, int]) -> tuple[Scene, ...]:
        for number in range(tries.get(index, 0), _DRAWS):
            tries[index] = number + 1
            item = self.attempt(index, random.Random(f"{self.seed}:{index}:{number}"))
            if item is not None:
                return item
        raise ValueError(
            f"expected a world that holds items of {type(self).__name__}, got none in {_DRAWS} "
            "draws: allow more colors, shapes or sizes, or fewer objects"
        )


def _drawable(scene: Scene) -> Scene:
    """The renderer wants an object: an empty scene gets one, far outside of the view."""
    if scene.objects:
        return scene
    nothing = SceneObject("sphere", "gray", "rubber", "plain", "small", (1e3, 1e3, 0.42), 0.42)
    return replace(scene, objects=(nothing,))


def _seen(rendered: Rendered, items: Sequence[tuple[Scene, ...]], spec: WorldSpec) -> list[bool]:
    """Tells for each item whether all objects of all its scenes are visible enough."""
    enough = rendered.visible >= spec.min_visible
    enough &= rendered.visible >= spec.min_exposed * rendered.unoccluded
    rows = iter(enough.tolist())
    return [all([all(next(rows)[: len(scene.objects)]) for scene in item]) for item in items]


def _rows(rendered: Rendered, row: int, count: int, slots: int) -> Rendered:
    """`count` rows from `row`, padded to `slots` objects."""

    def cut(values: torch.Tensor) -> torch.Tensor:
        part = values[row : row + count]
        wide = part.new_zeros((count, slots, *part.shape[2:]))
        wide[:, : part.shape[1]] = part[:, :slots]
        return wide

    measures = [cut(getattr(rendered, f.name)) for f in fields(Rendered)[1:]]
    return Rendered(rendered.images[row : row + count], *measures)


def _joined(parts: Sequence[Rendered]) -> Rendered:
    names = [f.name for f in fields(Rendered)]
    return Rendered(*(torch.cat([getattr(p, name) for p in parts]) for name in names))
