"""Measures how fast `data_builders.scenes` draws and renders scenes, in images per second.

Requirement: at least 40 images/s at 128 x 128 pixels with 2 x 2 rays per pixel on two CPU cores.
Measured: scenes are drawn and rendered as `vlmtune build scenes` does it, writing of files left
out, in one process and in two, each with one torch thread, and in one process on CUDA where there
is a GPU; after one chunk to warm up, the median of three rounds counts.

    python scripts/bench/render.py [--images 96] [--rounds 3]
"""

import argparse
import multiprocessing
import statistics
import time
from multiprocessing.pool import Pool

import torch

from data_builders.scenes.drawing import Canvas, SceneSeries
from data_builders.scenes.grammar import WorldSpec

SIZES = (64, 128)
REQUIRED = 40  # images/s at 128 pixels on two CPU cores

Job = tuple[int, int, Canvas]  # first image, number of images, canvas


def work(job: Job) -> None:
    """Draws and renders one chunk."""
    start, count, canvas = job
    SceneSeries(WorldSpec(), 0).draw(start, count, canvas)
    if canvas.device == "cuda":
        torch.cuda.synchronize()


def single() -> None:
    """Holds this process to one thread, as the builder does."""
    torch.set_num_threads(1)


def rate(images: int, rounds: int, canvas: Canvas, pool: Pool | None = None) -> float:
    """Images per second, the median of `rounds`; every round draws scenes of its own."""
    processes = 1 if pool is None else 2
    share, seconds = images // processes, []
    for number in range(rounds + 1):  # the first warms up
        first = number * images
        jobs: list[Job] = [(first + p * share, share, canvas) for p in range(processes)]
        began = time.perf_counter()
        if pool is None:
            work(jobs[0])
        else:
            pool.map(work, jobs, chunksize=1)
        seconds.append(time.perf_counter() - began)
    return share * processes / statistics.median(seconds[1:])


def main() -> None:
    """Prints one line for each size and place."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--images", type=int, default=96, help="images of one round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    single()
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with context.Pool(2, single) as pool:
        for size in SIZES:
            cpu = Canvas(size)
            one = rate(options.images, options.rounds, cpu)
            two = rate(options.images, options.rounds, cpu, pool)
            print(f"{size} px, cpu, 1 process: {one:.1f} images/s")
            wanted = f" (required: {REQUIRED})" if size == 128 else ""
            print(f"{size} px, cpu, 2 processes: {two:.1f} images/s{wanted}", flush=True)
    if torch.cuda.is_available():
        for size in SIZES:
            gpu = rate(options.images, options.rounds, Canvas(size, device="cuda"))
            print(f"{size} px, cuda, 1 process: {gpu:.1f} images/s")


if __name__ == "__main__":
    main()
