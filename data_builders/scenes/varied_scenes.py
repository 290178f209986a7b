"""Scenes to choose captions for: every second one shows a composition that training never does."""

import random
from dataclasses import dataclass

from data_builders.scenes.compositions import Pair
from data_builders.scenes.grammar import Scene, sample_scene
from data_builders.scenes.series import ItemSeries


@dataclass(frozen=True)
class VariedScenes(ItemSeries):
    """Scenes of one spec; odd ones have an object of an unseen composition, if there are any.

    Attributes:
        unseen: The (color, shape) compositions.
    """

    unseen: frozenset[Pair]

    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        """See `ItemSeries`."""
        scene = sample_scene(self.spec, rng)
        new = {(thing.color, thing.shape) for thing in scene.objects} & self.unseen
        return None if self.unseen and index % 2 and not new else (scene,)
