"""Images of scenes that a file describes.

In: scene requests. Out: images and scene graphs. Never: a shard.
"""

import json
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import PositiveInt
from typing_extensions import override

from data_builders.shard_builder import Builder, Fraction
from data_builders.text_files import write_json
from data_builders.worlds.scenes.formats import clevr
from data_builders.worlds.scenes.image_files import Split, render_files
from data_builders.worlds.scenes.requests.completion import MIN_EXPOSED, scene_of
from data_builders.worlds.scenes.requests.files import LIMIT, families, read_requests
from data_builders.worlds.scenes.requests.rendering import SPLIT, described, settled
from data_builders.worlds.scenes.sampling import WorldSpec
from data_builders.worlds.scenes.scene import Rays, Scene, Side
from data_builders.worlds.scenes.series import Canvas, Series
from vlmtune.errors import counted
from vlmtune.storage.files import write_text

# Requests are checked for hidden objects before they are rendered.
_ANY = WorldSpec(min_visible=0.0, min_exposed=0.0)


@dataclass(frozen=True)
class FixedScenes(Series):
    """A series of scenes that are known."""

    known: tuple[Scene, ...]

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        return (self.known[index],)


class RequestsBuilder(Builder):
    """Renders the scenes that a file of requests describes, with their scene graphs.

    `scenes.json` is CLEVR's scenes JSON, which `vlmtune build cola` and others read; the images are
    in `images`; `complete.jsonl` has a request for each image that leaves nothing out.
    docs/corpora.md describes requests.

    Args:
        path: The requests: a `.json` with one or a list of them, or a `.jsonl` with one a line.
        image_size: Side of the images in pixels.
        samples: Rays per pixel and axis.
        seed: Seed of what requests leave out; equal arguments give equal bytes.
        limit: Largest number of images, as sweeps multiply.
        min_exposed: Least fraction of each object that must not be hidden by others.
        processes: Rendering processes, by default as many as useful; the result is the same.
        device: Where to render, "cpu" or "cuda"; on a GPU one process is enough.
    """

    idle: ClassVar[Mapping[str, Any]] = {"processes": ...}

    def __init__(
        self, path: Path, image_size: Side = 64, samples: Rays = 2, seed: int = 0,
        limit: int = LIMIT, min_exposed: Fraction = MIN_EXPOSED,
        processes: PositiveInt | None = None, device: str = "cpu",
    ) -> None:  # fmt: skip
        self.path, self.canvas = Path(path), Canvas(image_size, samples, device)
        self.seed, self.limit, self.min_exposed = seed, limit, min_exposed
        self.processes = processes

    @override
    def write(self, folder: Path, tick: Callable[[], None]) -> None:
        expanded = families(read_requests(self.path), self.limit)
        total = sum(family.images for family in expanded)
        side = self.canvas.size
        requests = counted(len(expanded), "request")
        planned = f"{counted(total, 'image')} of {requests}, {side} x {side} pixels"
        print(f"{self.path}: {planned}", file=sys.stderr)
        scenes = list(settled(expanded, self.seed, self.min_exposed))
        known = tuple(scene_of(scene.request) for scene in scenes)
        names = tuple(f"{k:06d}.png" for k in range(total))
        splits = {SPLIT: Split(FixedScenes(_ANY, 0, known), names)}
        images = render_files(splits, self.canvas, folder / "images", self.processes, tick)[SPLIT]
        graphs, lines = [], []
        for image, scene in zip(images, scenes, strict=True):
            graphs.append(described(image, scene))
            lines.append(f"{json.dumps(scene.request.to_json())}\n")
        content = clevr.scenes(SPLIT, images) | {"scenes": graphs}
        write_json(folder / "scenes.json", content)
        write_text(folder / "complete.jsonl", "".join(lines))
        self.counts.update({"images": total, "requests": len(expanded)})
