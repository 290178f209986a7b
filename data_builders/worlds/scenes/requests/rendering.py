"""Images of scene requests.

In: requests in JSON. Out: images and scene graphs. Never: a shard.

The counterpart of TorchMultiverse, the Python interface of PUG (Bordes et al. 2023, section 3).
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from data_builders.worlds.scenes import render as renderer
from data_builders.worlds.scenes.formats import clevr
from data_builders.worlds.scenes.image_files import SceneImage, check_device
from data_builders.worlds.scenes.requests.completion import MIN_EXPOSED, complete, scene_of
from data_builders.worlds.scenes.requests.fields import SceneRequest
from data_builders.worlds.scenes.requests.files import SceneFamily, families, read_requests

SPLIT = "requests"
_BATCH = 96  # images that are rendered together


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
    number = 0
    while batch := list(itertools.islice(scenes, _BATCH)):
        known = [scene_of(scene.request) for scene in batch]
        for scene, shown in zip(batch, renderer.render(known, size, samples, device), strict=True):
            image = SceneImage.of(f"{SPLIT}/{SPLIT}_{number:06d}.png", number, shown)
            yield Image.fromarray(shown.image.numpy()), described(image, scene)
            number += 1


def described(image: SceneImage, scene: SettledScene) -> dict[str, Any]:
    """Returns the scene graph of an image, and the request that it comes from."""
    origin = {"request": scene.path, "sweep": scene.values, "complete": scene.request.to_json()}
    return {**clevr.scene_graph(SPLIT, image), **origin}
