"""Scene requests in JSON go in, images and scene graphs come out: the world as an environment.

The counterpart of TorchMultiverse, the Python interface of PUG (Bordes et al. 2023, section 3).
Never: a shard; `vlmtune build cola` and others read the scene graphs.
"""

import itertools
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from typing_extensions import override

from data_builders.scenes.formats import clevr
from data_builders.scenes.formats.files import write_json
from data_builders.scenes.image_files import (
    SceneImage,
    Split,
    check_device,
    chunks,
    numbered,
    render_chunks,
    useful_processes,
)
from data_builders.scenes.request_fields import SceneRequest
from data_builders.scenes.request_files import LIMIT, SceneFamily, families, read_requests
from data_builders.scenes.request_layout import scene_of
from data_builders.scenes.request_scenes import MIN_EXPOSED, complete
from data_builders.scenes.sampling import WorldSpec
from data_builders.scenes.scene import MAX_OBJECTS, Scene
from data_builders.scenes.series import Canvas, Series
from data_builders.shard_builder import Builder
from vlmtune.config import Spec
from vlmtune.data.schema import ShardInfo
from vlmtune.errors import UserError
from vlmtune.storage.files import write_text

_SPLIT = "requests"
_BATCH = 96  # images that are rendered together
# Requests are checked for hidden objects before they are rendered.
_ANY = WorldSpec(max_objects=MAX_OBJECTS, min_visible=0.0, min_exposed=0.0)


@dataclass(frozen=True)
class FixedScenes(Series):
    """A series of scenes that are known."""

    known: tuple[Scene, ...]

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        return (self.known[index],)


@dataclass(frozen=True)
class SettledScene:
    """A complete request, what a sweep set in it, and the path of its family."""

    path: str
    request: SceneRequest
    values: dict[str, Any]


def settled(
    expanded: Iterable[SceneFamily], seed: int, min_exposed: float = MIN_EXPOSED
) -> Iterator[SettledScene]:
    """Yields the scenes of all families, with what was left out sampled from the seed."""
    for number, family in enumerate(expanded):
        for copy in range(family.count):
            key = f"{seed}:{number}:{copy}"
            scenes = complete(family, key, min_exposed)
            for request, values in zip(scenes, family.values, strict=True):
                yield SettledScene(family.path, request, values)


def render(
    requests: Any,
    size: int = 64,
    seed: int = 0,
    samples: int = 2,
    device: str = "cpu",
    min_exposed: float = MIN_EXPOSED,
) -> Iterator[tuple[Image.Image, dict[str, Any]]]:
    """Yields an image and its scene graph for each request, in batches behind the scenes.

    Equal arguments give equal bytes. The scenes depend on the requests and the seed, not on the
    size of the images.

    Args:
        requests: A request, a list of them, or the path of a file with requests.
        size: Side of the images in pixels.
        seed: Seed of what requests leave out.
        samples: Rays per pixel and axis.
        device: Where to render, "cpu" or "cuda".
        min_exposed: Least fraction of each object that must not be hidden by others.

    Yields:
        The image, and the scene as CLEVR's scenes JSON states it, with the further keys "request"
        (the path of the request), "sweep" (what the sweep set) and "complete" (a request of this
        very scene, that leaves nothing out).

    Raises:
        UserError: A request is wrong or impossible; the error names the field.

    Example:
        >>> red = {"shape": "cube", "color": "red", "size": "large"}
        >>> cone = {"shape": "cone", "size": "small", "relation": "on 0"}
        >>> [(image, graph)] = render({"floor": "grass", "objects": [red, cone]}, size=32)
        >>> image.size, graph["floor"], graph["objects"][1]["on"]
        ((32, 32), 'grass', 0)
    """
    check_device(device)
    if isinstance(requests, str | Path):
        requests = read_requests(Path(requests))
    listed = [requests] if isinstance(requests, Mapping) else list(requests)
    scenes = settled(families(listed, limit=None), seed, min_exposed)
    canvas = Canvas(size, samples, device)
    start = 0
    while batch := list(itertools.islice(scenes, _BATCH)):
        yield from _rendered(batch, canvas, start)
        start += len(batch)


def _rendered(
    batch: Sequence[SettledScene], canvas: Canvas, start: int
) -> Iterator[tuple[Image.Image, dict[str, Any]]]:
    series = FixedScenes(_ANY, 0, tuple(scene_of(scene.request) for scene in batch))
    known, rendered = series.render(0, len(batch), canvas)
    names = numbered(_SPLIT, start + len(batch))[start:]
    pixels = rendered.images.cpu().numpy()
    for k, (settled_scene, scene) in enumerate(zip(batch, known, strict=True)):
        image = SceneImage.of(names[k], start + k, scene, canvas.size, rendered, k)
        yield Image.fromarray(pixels[k]), _graph(image, settled_scene)


def _graph(image: SceneImage, scene: SettledScene) -> dict[str, Any]:
    origin = {"request": scene.path, "sweep": scene.values, "complete": scene.request.to_json()}
    return {**clevr.scene_graph(_SPLIT, image), **origin}


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

    def __init__(
        self, path: Path, image_size: int = 64, samples: int = 2, seed: int = 0, limit: int = LIMIT,
        min_exposed: float = MIN_EXPOSED, processes: int | None = None, device: str = "cpu",
    ) -> None:  # fmt: skip
        if not 0.0 <= min_exposed <= 1.0:
            raise UserError(f"expected min_exposed from 0 to 1, got {min_exposed}: correct it")
        if processes is not None and processes < 1:
            raise UserError(f"expected processes >= 1, got {processes}: raise it or leave it out")
        self.path, self.canvas = Path(path), Canvas(image_size, samples, device)
        self.seed, self.limit, self.min_exposed = seed, limit, min_exposed
        self.processes = processes

    @override
    def spec(self) -> Spec:
        spec = super().spec()  # the number of processes does not change the result
        arguments = {k: v for k, v in spec["init_args"].items() if k != "processes"}
        return {**spec, "init_args": arguments}

    @override
    def write(self, folder: Path, tick: Callable[[], None]) -> Sequence[ShardInfo]:
        expanded = families(read_requests(self.path), self.limit)
        total = sum(family.images for family in expanded)
        side = self.canvas.size
        print(f"{self.path}: {total:,} images of {len(expanded):,} requests, {side} x {side} "
              "pixels", file=sys.stderr)  # fmt: skip
        scenes = list(settled(expanded, self.seed, self.min_exposed))
        check_device(self.canvas.device)
        known = tuple(scene_of(scene.request) for scene in scenes)
        names = tuple(f"{k:06d}.png" for k in range(total))
        splits = {_SPLIT: Split(FixedScenes(_ANY, 0, known), names)}
        processes = self.processes or useful_processes(splits, self.canvas)
        work = chunks(splits, self.canvas, folder / "images")
        images = render_chunks(work, processes, tick)[_SPLIT]
        content = clevr.scenes(_SPLIT, images)
        pairs = zip(images, scenes, strict=True)
        content["scenes"] = [_graph(image, scene) for image, scene in pairs]
        write_json(folder / "scenes.json", content)
        lines = (json.dumps(scene.request.to_json()) for scene in scenes)
        write_text(folder / "complete.jsonl", "".join(f"{line}\n" for line in lines))
        self.counts.update({"images": total, "requests": len(expanded)})
        return ()
