"""Endless series of scenes.

In: a spec, a seed and indices. Out: scenes with images, each by its index alone.
"""

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import override

from data_builders.worlds.scenes.render import Rendered, render
from data_builders.worlds.scenes.sampling import (
    Composition,
    NoRoomError,
    WorldSpec,
    sample_scene,
)
from data_builders.worlds.scenes.scene import Scene
from vlmtune.errors import UserError

_ATTEMPTS = 400  # for one item, before the world counts as unable to hold it
_CROWDED = 5  # attempts with objects that fit nowhere, likewise: each takes a second


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

    def render(self, start: int, count: int, canvas: Canvas) -> list[Rendered]:
        """Returns scenes start .. start + count - 1 with their images.

        Samples an item again until every object of all its scenes is visible enough (in rays).
        """
        length = self.scenes
        assert start % length == count % length == 0
        indices = range(start // length, (start + count) // length)
        pending = {index: self._samples(index) for index in indices}
        items: dict[int, list[Rendered]] = {}
        while pending:
            scenes = list(itertools.chain(*map(next, pending.values())))
            rendered = iter(render(scenes, canvas.size, canvas.samples, canvas.device))
            for index in list(pending):
                item = list(itertools.islice(rendered, length))
                if all(map(self._accepts, item)):
                    items[index] = item
                    del pending[index]
        return list(itertools.chain(*(items[index] for index in indices)))

    def _samples(self, index: int) -> Iterator[tuple[Scene, ...]]:
        crowded = 0
        for attempt in range(_ATTEMPTS):
            rng = random.Random(f"{self.seed}:{index}:{attempt}")
            try:
                item = self.attempt(index, rng)
            except NoRoomError:
                crowded += 1
                if crowded == _CROWDED:
                    raise
                continue
            if item is not None:
                yield item
        raise UserError(
            f"expected a world that holds items of {type(self).__name__}, got none in {_ATTEMPTS} "
            "attempts: allow more colors, shapes or sizes, fewer objects, or a lower min_visible"
        )

    def _accepts(self, rendered: Rendered) -> bool:
        enough = rendered.visible >= self.spec.min_visible
        enough &= rendered.visible >= self.spec.min_exposed * rendered.unoccluded
        return bool(enough.all())


class SceneSeries(Series):
    """Independent scenes of one spec."""

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        spec = self.spec
        if spec.clevr:
            # As CLEVR's generator does, other attempts keep the number of objects.
            numbers = random.Random(f"{self.seed}:{index}:objects")
            count = numbers.randint(spec.min_objects, spec.max_objects)
            spec = replace(spec, min_objects=count, max_objects=count)
        return (sample_scene(spec, rng),)


@dataclass(frozen=True)
class VariedScenes(Series):
    """Scenes of one spec; odd ones show one of the `unseen` compositions, if there are any."""

    unseen: frozenset[Composition]

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        scene = sample_scene(self.spec, rng)
        shown = {(obj.color, obj.shape) for obj in scene.objects}
        return None if self.unseen and index % 2 and not shown & self.unseen else (scene,)
