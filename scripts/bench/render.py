"""Measures how fast `data_builders.worlds.scenes` samples and renders scenes, in images per second.

Required: at least 40 images/s at 128 x 128 pixels with 2 x 2 rays per pixel on two CPU cores.

    python -m scripts.bench.render [--images 96] [--rounds 3]
"""

import itertools
import multiprocessing
from multiprocessing.pool import Pool

import torch

from data_builders.worlds.scenes.sampling import WorldSpec
from data_builders.worlds.scenes.series import Canvas, SceneSeries
from scripts.bench.harness import medians, options

REQUIRED = 40  # images/s at 128 pixels on two CPU cores


def render(start: int, count: int, canvas: Canvas) -> None:
    """Samples and renders one chunk of scenes."""
    torch.set_num_threads(1)
    SceneSeries(WorldSpec(), 0).render(start, count, canvas)
    if canvas.device == "cuda":
        torch.cuda.synchronize()


def rate(images: int, rounds: int, canvas: Canvas, pool: Pool, processes: int) -> float:
    """Images per second; every round samples scenes of its own."""
    each, starts = images // processes, itertools.count(step=images)

    def one_round() -> None:
        start = next(starts)
        chunks = [(start + p * each, each, canvas) for p in range(processes)]
        pool.starmap(render, chunks, chunksize=1)

    return each * processes / medians([one_round], rounds, wall=True)[0]


def main() -> None:
    """Prints one line for each size and device."""
    chosen = options(__doc__, images=96, rounds=3)
    cases = list(itertools.product((64, 128), ("cpu",), (1, 2)))
    if torch.cuda.is_available():
        cases += [(64, "cuda", 1), (128, "cuda", 1)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:  # torch's threads survive no fork
        for size, device, processes in cases:
            canvas = Canvas(size, device=device)
            speed = rate(chosen.images, chosen.rounds, canvas, pool, processes)
            wanted = f" (required: {REQUIRED})" if (size, processes) == (128, 2) else ""
            print(f"{size} px, {device}, processes {processes}: {speed:.1f} images/s{wanted}")


if __name__ == "__main__":
    main()
