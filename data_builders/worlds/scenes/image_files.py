"""Rendering of whole series into files.

In: series of scenes. Out: image files and their scenes, the same in any chunks and processes.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from data_builders.processes import in_processes
from data_builders.worlds.scenes.render import Rendered
from data_builders.worlds.scenes.scene import Scene
from data_builders.worlds.scenes.series import Canvas, Series
from vlmtune.errors import UserError

_CHUNK = 96  # maximum number of images in a chunk
_RAYS_PER_CHUNK = 1 << 22  # bounds memory and keeps every process busy to the end
_RAYS_WORTH_A_PROCESS = 1 << 25  # some seconds of work on one core


@dataclass(frozen=True)
class Split:
    """A series and the files of its first images, relative to the images folder.

    A `.npy` file is written as OpenCV's frames are: an array, blue first.
    """

    series: Series
    files: tuple[str, ...]


@dataclass(frozen=True)
class SceneImage:
    """A scene and its image `file`, number `index` of its split, `size` pixels a side.

    `boxes` hold x, y, width, height in pixels around the visible part of each object,
    `pixel_coords` the projected centre x, y in pixels, and its depth.
    """

    file: str
    index: int
    scene: Scene
    size: int
    boxes: tuple[tuple[int, int, int, int], ...]
    pixel_coords: tuple[tuple[float, float, float], ...]

    @classmethod
    def of(cls, file: str, index: int, rendered: Rendered) -> "SceneImage":
        """Returns the description of a rendered image."""
        boxes = tuple(map(tuple, rendered.boxes.tolist()))
        coords = tuple(map(tuple, rendered.pixel_coords.tolist()))
        return cls(file, index, rendered.scene, len(rendered.image), boxes, coords)

    @property
    def name(self) -> str:
        """The file name without its folder."""
        return self.file.rpartition("/")[2]


Images = Mapping[str, Sequence[SceneImage]]
"""The images of each split, by its name."""


def pairs_of(images: Sequence[SceneImage]) -> Iterator[tuple[int, Sequence[SceneImage]]]:
    """Yields the two images of each item of a series of pairs, numbered."""
    return enumerate(images[k : k + 2] for k in range(0, len(images), 2))


def sub_seed(seed: int, name: str) -> int:
    """Returns the seed of the series called `name`, unrelated to the seed of any other name."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:6])


def numbered(split: str, count: int) -> tuple[str, ...]:
    """Returns "cola/cola_seen_000000.png" and so on for the split "cola_seen"."""
    folder = split.partition("_")[0]
    return tuple(f"{folder}/{split}_{k:06d}.png" for k in range(count))


def _chunks(
    splits: Mapping[str, Split], canvas: Canvas, folder: Path, most: int
) -> Iterator[tuple[Any, ...]]:
    """Yields what `_render_chunk` is called with: whole items of a split, at most `most` images."""
    most = min(most, _RAYS_PER_CHUNK // (canvas.size * canvas.samples) ** 2)
    for name, split in splits.items():
        # A pair or a video is sampled as a whole, so no chunk ends inside one.
        items = max(1, most // split.series.scenes)
        size = items * split.series.scenes
        for k in range(0, len(split.files), size):
            files = split.files[k : k + size]
            yield name, split.series, k, files, canvas, folder


def _render_chunk(
    split: str, series: Series, start: int, files: Sequence[str], canvas: Canvas, folder: Path
) -> tuple[str, list[SceneImage]]:
    """Renders consecutive images of a split."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # fastest for tensors this small
    try:
        rendered = series.render(start, len(files), canvas)
    finally:
        torch.set_num_threads(threads)
    for parent in {(folder / file).parent for file in files}:
        parent.mkdir(parents=True, exist_ok=True)
    images: list[SceneImage] = []
    for index, (shown, file) in enumerate(zip(rendered, files, strict=True), start):
        _save(shown.image.numpy(), folder / file)
        images.append(SceneImage.of(file, index, shown))
    return split, images


def _save(pixels: UInt8[np.ndarray, "size size 3"], path: Path) -> None:
    if path.suffix == ".npy":
        np.save(path, pixels[..., ::-1])
    else:  # PNG at the fastest level, as writing must not take longer than rendering
        Image.fromarray(pixels).save(path, compress_level=1)


def check_device(device: str) -> None:
    """Raises `UserError` where torch has no such device."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"expected a device that torch can use, got {device!r} ({reason}): use 'cpu'"
        ) from error


def _useful_processes(splits: Mapping[str, Split], canvas: Canvas) -> int:
    """One process per core, fewer where starting one takes longer than its work."""
    if canvas.device != "cpu":
        return 1
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    images = sum(len(split.files) for split in splits.values())
    rays = images * (canvas.size * canvas.samples) ** 2
    return max(1, min(cores, rays // _RAYS_WORTH_A_PROCESS))


def render_files(
    splits: Mapping[str, Split],
    canvas: Canvas,
    folder: Path,
    processes: int | None,
    tick: Callable[[], None],
    most: int = _CHUNK,
) -> dict[str, list[SceneImage]]:
    """Renders all splits into files below `folder` and returns the images of each, in order.

    The files are the same with any number of processes (None: as many as useful) and with any
    number `most` of images that are rendered together.
    """
    check_device(canvas.device)
    calls = _chunks(splits, canvas, folder, most)
    workers = processes or _useful_processes(splits, canvas)
    images: dict[str, list[SceneImage]] = {
        name: [] for name, split in splits.items() if split.files
    }
    for name, rendered in in_processes(_render_chunk, calls, workers):
        images[name] += rendered
        for _ in rendered:
            tick()
    for rows in images.values():
        rows.sort(key=lambda image: image.index)
    return images
