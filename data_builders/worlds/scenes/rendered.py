"""Scenes with captions that are rendered while training.

In: a world and a seed. Out: groups. Never: a file.

`vlmtune fit` chooses it by its class path in `data.train`.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from PIL import Image
from typing_extensions import override

from data_builders.shard_builder import Fraction, images_group
from data_builders.worlds.scenes.ar4t_paper import PAIRS
from data_builders.worlds.scenes.ar4t_scenes import AR4TPairs
from data_builders.worlds.scenes.captions import sentences
from data_builders.worlds.scenes.compositions import RECTANGLES, Unseen, swaps, unseen_compositions
from data_builders.worlds.scenes.image_files import check_device, sub_seed
from data_builders.worlds.scenes.pairs import ENGINE, ColaPairs, PairSeries
from data_builders.worlds.scenes.sampling import DEFAULT, WorldSpec
from data_builders.worlds.scenes.scene import (
    Color,
    Floor,
    Material,
    Rays,
    Scene,
    Shape,
    Side,
    Size,
    Texture,
)
from data_builders.worlds.scenes.series import Canvas, SceneSeries, Series
from vlmtune.data.rendered import RenderedSet
from vlmtune.types import Group

Kind = Literal["captions", "cola", "ar4t", "ar4t_paper", "location", "counting", "attribute"]
_EPOCH = 1 << 32  # numbers of groups in an epoch: no two epochs share one
_AR4T = {"ar4t": "world", "ar4t_paper": "paper"}
_ENGINE = {"location": "loc", "counting": "cnt", "attribute": "attr"}  # kinds of EqBen's pairs


class RenderedScenes(RenderedSet):
    """Groups of the embedded world, rendered by the processes that load data.

    No scene shows an unseen (color, shape) composition. The groups of a kind:

    - captions: a scene and five sentences (1 x 5).
    - cola: two scenes whose objects have exchanged colours, Cola's multi-object items (2 x 2).
    - ar4t: PUG:AR4T's pairs, the objects or an attribute exchanged, two captions each (2 x 4).
    - ar4t_paper: the same with the words of the paper's appendix B.5.
    - location, counting, attribute: EqBen's pairs from an engine (2 x 2).

    Args:
        records: Groups in an epoch; every epoch has new ones.
        kind: The kind of the groups.
        weight: How often training sees a group of this set, relative to a set of weight 1.
        image_size: Side of the images in pixels.
        samples: Rays per pixel and axis.
        seed: Seed of the scenes.
        min_objects: Minimum number of objects in a scene; two in pairs, and exactly two in AR4T's.
        max_objects: Maximum number of objects in a scene.
        shapes: Shapes that occur; likewise `colors`, `materials`, `textures`, `sizes`, `floors`.
        stack: Probability that a small object with a free support stands on it.
        unseen: Rectangles (colors, shapes) of compositions that are never shown, or
            "A" or "B" for what CoGenT forbids in that condition.
        device: Where to render, "cpu" or, with `data.num_workers` 0, "cuda".
    """

    def __init__(
        self, records: int = 12000, kind: Kind = "cola", weight: float = 1.0, image_size: Side = 64,
        samples: Rays = 2, seed: int = 0, min_objects: int = 1, max_objects: int = 4,
        shapes: Sequence[Shape] = DEFAULT.shapes, colors: Sequence[Color] = DEFAULT.colors,
        materials: Sequence[Material] = DEFAULT.materials,
        textures: Sequence[Texture] = DEFAULT.textures, sizes: Sequence[Size] = DEFAULT.sizes,
        floors: Sequence[Floor] = DEFAULT.floors,
        stack: Fraction = 0.0, unseen: Unseen = RECTANGLES,
        device: str = "cpu",
    ) -> None:  # fmt: skip
        super().__init__(records, weight)
        check_device(device)
        self.kind, self.seed, self.canvas = kind, seed, Canvas(image_size, samples, device)
        held_out = unseen_compositions(unseen, colors, shapes)
        spec = WorldSpec(
            min_objects, max_objects, tuple(shapes), tuple(colors), tuple(materials),
            tuple(textures), tuple(sizes), tuple(floors), forbidden=held_out,
            stack_probability=stack,
        )  # fmt: skip
        self.series = self._series(spec)

    def _series(self, spec: WorldSpec) -> Series:
        seed = sub_seed(self.seed, f"rendered_{self.kind}")
        if self.kind == "captions":
            return SceneSeries(spec, seed)
        if self.kind in _AR4T:
            return PAIRS[_AR4T[self.kind]](replace(spec, min_objects=2, max_objects=2), seed)
        two = spec.at_least(2)
        if self.kind != "cola":
            return ENGINE[_ENGINE[self.kind]](two, seed)
        return ColaPairs(two, seed, swaps(frozenset(spec.compositions())))

    @override
    def groups(self, epoch: int, start: int, count: int) -> Sequence[Group]:
        length, first = self.series.scenes, epoch * _EPOCH + start
        rendered = self.series.render(first * length, count * length, self.canvas)
        groups = []
        for k in range(count):
            item = rendered[k * length : (k + 1) * length]
            captions = self._captions(tuple(shown.scene for shown in item), first + k)
            name = f"{self.kind}_{self.seed}_{epoch}_{start + k}"
            ids = [f"{name}_{n}" for n in range(length)]
            texts = tuple(dict.fromkeys(itertools.chain(*captions)))
            pictures = tuple(Image.fromarray(shown.image.numpy()) for shown in item)
            groups.append(images_group(name, ids, texts, captions, pictures=pictures))
        return groups

    def _captions(self, scenes: tuple[Scene, ...], index: int) -> list[tuple[str, ...]]:
        """The captions of each scene of an item."""
        series = self.series
        if isinstance(series, AR4TPairs):
            stated = series.captions(index, scenes)
            return [(text.caption, text.alternative) for text in stated]
        if isinstance(series, PairSeries):
            return [(series.caption(index, scene, scenes),) for scene in scenes]
        rng = random.Random(f"{self.seed}:sentences:{index}")
        return [tuple(sentences(scenes[0], rng))]
