"""Draws series of scenes into image files, in as many processes as there are to spare.

Image n of a series depends on the series alone, so neither the number of processes nor the way the
work is cut into chunks changes a byte.
"""

import hashlib
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from data_builders.scenes.grammar import Scene, WorldSpec
from data_builders.scenes.render import Rendered
from data_builders.scenes.sample import make_scenes
from vlmtune.errors import UserError

_CHUNK = 96  # images; even, so that twins stay together


@dataclass(frozen=True)
class Canvas:
    """How images are rendered: side in pixels, rays per pixel and axis, device."""

    size: int = 64
    samples: int = 2
    device: str = "cpu"


class Series(Protocol):
    """An endless series of scenes; every chunk of it can be drawn on its own."""

    def draw(self, start: int, count: int, canvas: Canvas) -> tuple[list[Scene], Rendered]:
        """Returns scenes start .. start + count - 1 and their images."""
        ...


@dataclass(frozen=True)
class SceneSeries:
    """Independent scenes of one spec."""

    spec: WorldSpec
    seed: int

    def draw(self, start: int, count: int, canvas: Canvas) -> tuple[list[Scene], Rendered]:
        """See `Series`."""
        return make_scenes(
            self.spec, self.seed, start, count, canvas.size, canvas.samples, canvas.device
        )


@dataclass(frozen=True)
class Plan:
    """A series and how many images of it a split gets.

    Attributes:
        series: The scenes.
        images: How many of them.
        files: Their files, relative to the images folder; by default
            "<folder>/<split>_<index>.png", where the folder is the split's name up to an underscore
            ("cola" for "cola_seen"). One that ends in `.npy` is written as OpenCV's frames are: an
            array, blue first.
        each: Images of an item, which are drawn together.
    """

    series: Series
    images: int
    files: tuple[str, ...] = ()
    each: int = 2


@dataclass(frozen=True)
class Drawn:
    """A scene and its image.

    Attributes:
        file: The image, relative to the images folder.
        index: Its number within the split.
        scene: What it shows.
        size: Side in pixels.
        boxes: x, y, width, height in pixels of what is visible of each object.
        pixel_coords: Projected centre x, y in pixels, and depth, of each object.
    """

    file: str
    index: int
    scene: Scene
    size: int
    boxes: tuple[tuple[int, int, int, int], ...]
    pixel_coords: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class Chunk:
    """A piece of a split, small enough to be drawn at once."""

    series: Series
    split: str
    start: int
    count: int
    canvas: Canvas
    images: Path
    files: tuple[str, ...]


def sub_seed(seed: int, name: str) -> int:
    """Returns the seed of the series called `name`, unrelated to that of any other name."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:6])


def chunks(
    series: Series,
    split: str,
    count: int,
    canvas: Canvas,
    images: Path,
    size: int = _CHUNK,
    files: Sequence[str] = (),
) -> list[Chunk]:
    """Cuts the first `count` images of a series into chunks of `size`; `files` as in `Plan`."""
    folder = split.partition("_")[0]
    names = tuple(files) or tuple(f"{folder}/{split}_{k:06d}.png" for k in range(count))
    return [
        Chunk(series, split, start, len(part), canvas, images, part)
        for start in range(0, count, size)
        for part in [names[start : min(start + size, count)]]
    ]


def draw_chunk(chunk: Chunk) -> list[Drawn]:
    """Renders a chunk and writes its images."""
    scenes, rendered = chunk.series.draw(chunk.start, chunk.count, chunk.canvas)
    pixels = rendered.images.cpu().numpy()
    boxes, coords = rendered.boxes.tolist(), rendered.pixel_coords.tolist()
    for folder in {file.rpartition("/")[0] for file in chunk.files}:
        (chunk.images / folder).mkdir(parents=True, exist_ok=True)
    drawn: list[Drawn] = []
    for k, scene in enumerate(scenes):
        index, objects = chunk.start + k, len(scene.objects)
        file = chunk.files[k]
        _save(pixels[k], chunk.images / file)
        drawn.append(
            Drawn(
                file,
                index,
                scene,
                chunk.canvas.size,
                tuple((x, y, w, h) for x, y, w, h in boxes[k][:objects]),
                tuple((x, y, depth) for x, y, depth in coords[k][:objects]),
            )
        )
    return drawn


def _save(pixels: UInt8[np.ndarray, "size size 3"], path: Path) -> None:
    if path.suffix == ".npy":
        np.save(path, pixels[..., ::-1])
    else:  # PNG at the fastest level: rendering must dominate
        Image.fromarray(pixels).save(path, compress_level=1)


def _one_thread() -> int:
    """Holds torch to one thread, fastest for tensors this small; returns how many it had."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    return threads


def check_device(device: str) -> None:
    """Raises `UserError` where torch has no such device."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"expected a device that torch can use, got {device!r} ({reason}): use 'cpu'"
        ) from error


def draw(
    work: Sequence[Chunk], processes: int, done: Callable[[int], None]
) -> dict[str, list[Drawn]]:
    """Draws all chunks and returns the images of each split in order.

    Args:
        work: The chunks, those of one split in order.
        processes: How many processes; with 1 everything runs in this one.
        done: Called with the number of images of each finished chunk.

    Raises:
        UserError: The scenes asked for cannot be drawn, or a process was killed.
    """
    found: dict[str, list[Drawn]] = {chunk.split: [] for chunk in work}

    def collect(results: Iterable[list[Drawn]]) -> None:
        for chunk, drawn in zip(work, results, strict=True):
            found[chunk.split] += drawn
            done(len(drawn))

    try:
        if processes == 1:
            threads = _one_thread()
            try:
                collect(map(draw_chunk, work))
            finally:
                torch.set_num_threads(threads)
            return found
        # Spawned, not forked: torch's threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, context, _one_thread) as pool:
            try:
                collect(pool.map(draw_chunk, work))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    except BrokenProcessPool as error:
        raise UserError(
            f"expected {processes} rendering processes to finish, one was killed (often for want "
            "of memory): lower `processes` or `image_size`"
        ) from error
    except ValueError as error:
        raise UserError(str(error)) from error
    return found
