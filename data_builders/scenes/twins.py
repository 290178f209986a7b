"""Pairs of scenes that differ in how the same words are bound: Cola's and PUG:AR4T's test items."""

import random
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

from data_builders.scenes.captions import clear_relation
from data_builders.scenes.compositions import Swap
from data_builders.scenes.grammar import (
    Scene,
    SceneObject,
    camera,
    half_height,
    in_view,
    sample_scene,
    sample_twin,
)
from data_builders.scenes.series import ItemSeries

Twins = tuple[Scene, Scene]

_RELATIONS = ("left", "right", "front", "behind")


@dataclass(frozen=True)
class TwinSeries(ItemSeries):
    """Scenes 2i and 2i + 1 are item i; objects 0 and 1 of both are the ones it is about."""

    scenes: ClassVar[int] = 2

    @abstractmethod
    def attempt(self, index: int, rng: random.Random) -> Twins | None:
        """See `ItemSeries`."""


def _recast(thing: SceneObject, color: str, shape: str, rng: random.Random) -> SceneObject:
    return replace(
        thing, color=color, shape=shape, standing=shape == "torus" and rng.random() < 0.5
    )


@dataclass(frozen=True)
class ColaTwins(TwinSeries):
    """Cola's multi-object items: `a_1 o_1 + a_2 o_2` and, laid out anew, `a_2 o_1 + a_1 o_2`.

    No further object has one of the four compositions, so neither caption is true of the other's
    image, and both images hold the same words.

    Attributes:
        swaps: The colours and shapes to take, in turn.
        relational: Share of the items, drawn item by item, whose two objects stand in one clear
            relation, the same in both images.
    """

    swaps: tuple[Swap, ...] = ()
    relational: float = 0.0

    def swap(self, index: int) -> Swap:
        """The colours and shapes of item `index`; all swaps come equally often."""
        order = list(self.swaps)
        random.Random(f"{self.seed}:swaps:{index // len(order)}").shuffle(order)
        return order[index % len(order)]

    def is_relational(self, index: int) -> bool:
        """Tells whether the captions of item `index` state a relation."""
        return random.Random(f"{self.seed}:relational:{index}").random() < self.relational

    def attempt(self, index: int, rng: random.Random) -> Twins | None:
        """See `TwinSeries`."""
        swap = self.swap(index)
        colors, shapes = rng.sample(swap.colors, 2), rng.sample(swap.shapes, 2)
        drawn = sample_scene(self.spec, rng)
        if any((o.color, o.shape) in swap.compositions() for o in drawn.objects[2:]):
            return None
        queried = (
            _recast(o, c, s, rng) for o, c, s in zip(drawn.objects[:2], colors, shapes, strict=True)
        )
        # Positions belong to the shapes drawn before; exchanging colours lays the objects out.
        mirror = replace(drawn, objects=(*queried, *drawn.objects[2:]))
        scene = sample_twin(mirror, 0, 1, "color", rng=rng)
        twin = sample_twin(scene, 0, 1, "color", rng=rng)
        if self.is_relational(index):
            relation = clear_relation(scene, 0, 1)
            if relation is None or relation != clear_relation(twin, 0, 1):
                return None
        return scene, twin


@dataclass(frozen=True)
class AR4TTwins(TwinSeries):
    """PUG:AR4T's scenes with their hard negatives (PUG, appendix B.5), two objects each.

    Even items are about a relation, which the negative scene reverses by letting the objects change
    places; odd items are about an attribute, which the negative scene exchanges.
    """

    def attempt(self, index: int, rng: random.Random) -> Twins | None:
        """See `TwinSeries`."""
        scene = sample_scene(self.spec, rng)
        a, b = scene.objects
        if a.shape == b.shape or a.on is not None or b.on is not None:
            return None
        if index % 2 == 0:
            return self._reversed(scene)
        kind = self.attribute(index)
        if getattr(a, kind) == getattr(b, kind):
            return None
        exchanged = {(a.color, b.shape), (b.color, a.shape)} & self.spec.forbidden
        if kind == "color" and exchanged:
            return None
        return scene, sample_twin(scene, 0, 1, kind, rng=rng)

    def attribute(self, index: int) -> str:
        """The attribute that item `index` exchanges, one of those the world varies."""
        spec = self.spec
        varied = (("color", spec.colors), ("material", spec.materials), ("size", spec.sizes),
                  ("texture", spec.textures))  # fmt: skip
        kinds = [kind for kind, values in varied if len(values) > 1]
        return kinds[(index // 2) % len(kinds)] if kinds else "color"

    @staticmethod
    def _reversed(scene: Scene) -> Twins | None:
        a, b = scene.objects
        moved = tuple(
            replace(o, center=(other.center[0], other.center[1], half_height(o)))
            for o, other in ((a, b), (b, a))
        )
        view = camera(scene.jitter)
        if clear_relation(scene, 0, 1) not in _RELATIONS:
            return None
        if not all(in_view(o, view) for o in moved):
            return None
        return scene, replace(scene, objects=moved)
