import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from data_builders.worlds.scenes import image_files
from data_builders.worlds.scenes.pairs import ExchangedPairs
from data_builders.worlds.scenes.sampling import WorldSpec
from data_builders.worlds.scenes.series import Canvas, SceneSeries
from tests.refusals import refused
from vlmtune.data.images import open_image

CANVAS = Canvas(size=24, samples=1)
SERIES = SceneSeries(WorldSpec(max_objects=3), 11)


def render_in(folder: Path, size: int, processes: int = 1):
    counted: list[int] = []
    pairs = ExchangedPairs(WorldSpec(min_objects=2, max_objects=2), 3)
    some = image_files.Split(pairs, image_files.numbered("ar4t_x", 6))
    splits = {"train": image_files.Split(SERIES, image_files.numbered("train", 7)), "ar4t_x": some}
    tick = partial(counted.append, 1)
    images = image_files.render_files(splits, CANVAS, folder, processes, tick, size)
    assert sum(counted) == 13
    files = {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*.png")}
    assert len(files) == 13
    return images, files


def test_chunks_do_not_matter(tmp_path):
    assert render_in(tmp_path / "a", 2) == render_in(tmp_path / "b", 100)


def test_an_array_is_a_frame_of_the_same_colours(tmp_path):
    splits = {name: image_files.Split(SERIES, (f"a.{name}",)) for name in ("png", "npy")}
    image_files.render_files(splits, CANVAS, tmp_path, 1, lambda: None)
    frame, image = (open_image(tmp_path / f"a.{name}") for name in ("npy", "png"))
    assert frame.tobytes() == image.tobytes()


@pytest.mark.slow
def test_processes_do_not_matter(tmp_path):
    assert render_in(tmp_path / "a", 2) == render_in(tmp_path / "b", 4, processes=2)


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
def test_an_unknown_device(device):
    with refused("expected a device that torch can use"):
        image_files.check_device(device)


RENDER = """
import sys
from pathlib import Path
from data_builders.worlds.scenes.world import ScenesBuilder

SMALL = {"processes": 2, "image_size": 32}

if __name__ == "__main__":
    world = ScenesBuilder(train=100_000, val=0, test=0, multi=0, ar4t_train=0, **SMALL)
    world.build(Path(sys.argv[1]), progress=False)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux to list processes")
def test_rendering_processes_end_when_the_build_is_killed(tmp_path):
    (tmp_path / "render.py").write_text(RENDER)
    command = [sys.executable, tmp_path / "render.py", tmp_path / "world"]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ) as build:
        waited(lambda: any(tmp_path.glob(".world*/images/train/*")))
        children = Path(f"/proc/{build.pid}/task/{build.pid}/children").read_text().split()
        build.kill()
    assert len(children) >= 2
    waited(lambda: not any(running(child) for child in children))


def running(process):
    status = Path(f"/proc/{process}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def waited(done):
    """Waits until a condition holds, for two minutes at most."""
    for _ in range(1200):
        if done():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen in two minutes")
