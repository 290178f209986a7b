"""Endless series of scenes.

In: a spec, a seed and indices. Out: scenes with images, each by its index alone.
"""

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from typing_extensions import override

from data_builders.worlds.scenes.render import Rendered, render
from data_builders.worlds.scenes.sampling import Composition, WorldSpec, sample_scene
from data_builders.worlds.scenes.scene import Scene, SceneObject
from vlmtune.errors import UserError

_ATTEMPTS = 400  # for one item, before the world counts as unable to hold it


@dataclass(frozen=True)
class Canvas:
    """How images are rendered: side in pixels, rays per pixel and axis, device."""

    size: int = 64
    samples: int = 2
    device: str = "cpu"


@dataclass(frozen=True)
class Series(ABC):
    """An endless series of items of `scenes` scenes each: 1, 2 for a pair, more for a video."""

    spec: WorldSpec
    seed: int
    scenes: ClassVar[int] = 1

    @abstractmethod
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        """Samples item `index`, or returns None where this sample does not qualify."""

    def render(self, start: int, count: int, canvas: Canvas) -> tuple[list[Scene], Rendered]:
        """Returns scenes start .. start + count - 1 and their images.

        Samples an item again until every object of all its scenes is visible enough (in rays).
        """
        length = self.scenes
        assert start % length == count % length == 0
        pending = list(range(start // length, (start + count) // length))
        attempts = dict.fromkeys(pending, 0)
        items: dict[int, tuple[Scene, ...]] = {}
        parts: list[Rendered] = []
        while pending:
            candidates = [self._next(index, attempts) for index in pending]
            scenes = list(map(_renderable, itertools.chain(*candidates)))
            rendered = render(scenes, canvas.size, canvas.samples, canvas.device)
            accepted = self._accepted(candidates, rendered)
            parts.append(rendered.select(_rows(accepted, length), self.spec.max_objects))
            items |= {pending[k]: candidates[k] for k in accepted}
            pending = [index for index in pending if index not in items]
        # The images are in the order in which their items were accepted.
        order = sorted(range(len(items)), key=list(items).__getitem__)
        rendered = Rendered.concatenate(parts).select(_rows(order, length), self.spec.max_objects)
        return list(itertools.chain(*(items[index] for index in sorted(items)))), rendered

    def _next(self, index: int, attempts: dict[int, int]) -> tuple[Scene, ...]:
        for attempt in range(attempts[index], _ATTEMPTS):
            attempts[index] = attempt + 1
            item = self.attempt(index, random.Random(f"{self.seed}:{index}:{attempt}"))
            if item is not None:
                return item
        raise UserError(
            f"expected a world that holds items of {type(self).__name__}, got none in {_ATTEMPTS} "
            "attempts: allow more colors, shapes or sizes, fewer objects, or a lower min_visible"
        )

    def _accepted(self, items: Sequence[tuple[Scene, ...]], rendered: Rendered) -> list[int]:
        enough = rendered.visible >= self.spec.min_visible
        enough &= rendered.visible >= self.spec.min_exposed * rendered.unoccluded
        rows = iter(enough.tolist())
        accepted = []
        for k, item in enumerate(items):
            # A row has a column for each object of the fullest scene; the rest is padding.
            seen = [next(rows)[: len(scene.objects)] for scene in item]
            if all(map(all, seen)):
                accepted.append(k)
        return accepted


def _rows(items: Sequence[int], length: int) -> torch.Tensor:
    return torch.tensor([length * item + k for item in items for k in range(length)]).long()


def _renderable(scene: Scene) -> Scene:
    """The scene; an empty one gets an object far outside of the view."""
    if scene.objects:
        return scene
    hidden = SceneObject("sphere", "gray", "rubber", "plain", "small", (1e3, 1e3, 0.42), 0.42)
    return replace(scene, objects=(hidden,))


class SceneSeries(Series):
    """Independent scenes of one spec."""

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        return (sample_scene(self._spec(index), rng),)

    def _spec(self, index: int) -> WorldSpec:
        """The spec of a scene; as CLEVR's generator does, other attempts keep its object count."""
        spec = self.spec
        if not spec.clevr:
            return spec
        rng = random.Random(f"{self.seed}:{index}:objects")
        count = rng.randint(spec.min_objects, spec.max_objects)
        return replace(spec, min_objects=count, max_objects=count)


@dataclass(frozen=True)
class VariedScenes(Series):
    """Scenes of one spec; odd ones show one of the `unseen` compositions, if there are any."""

    unseen: frozenset[Composition]

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        scene = sample_scene(self.spec, rng)
        shown = {(obj.color, obj.shape) for obj in scene.objects}
        return None if self.unseen and index % 2 and not shown & self.unseen else (scene,)
