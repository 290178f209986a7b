from pathlib import Path

import pytest
from PIL import Image

from data_builders.scenes.drawing import (
    Canvas,
    SceneSeries,
    check_device,
    chunks,
    draw,
    sub_seed,
)
from data_builders.scenes.grammar import WorldSpec
from data_builders.scenes.twins import AR4TTwins
from vlmtune.errors import UserError

CANVAS = Canvas(size=24, samples=1)
SERIES = SceneSeries(WorldSpec(max_objects=3), 11)


def drawn_in(folder: Path, size: int, processes: int = 1):
    counted: list[int] = []
    twins = AR4TTwins(WorldSpec(min_objects=2, max_objects=2), 3)
    work = [
        *chunks(SERIES, "train", 7, CANVAS, folder, size),
        *chunks(twins, "ar4t_x", 6, CANVAS, folder, size),
    ]
    found = draw(work, processes, counted.append)
    assert sum(counted) == 13
    files = {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*.png")}
    assert len(files) == 13
    return found, files


def test_chunks_do_not_matter(tmp_path):
    assert drawn_in(tmp_path / "a", 2) == drawn_in(tmp_path / "b", 100)


@pytest.mark.slow
def test_processes_do_not_matter(tmp_path):
    assert drawn_in(tmp_path / "a", 2) == drawn_in(tmp_path / "b", 4, processes=2)


def test_files_and_measures(tmp_path):
    found, _ = drawn_in(tmp_path, 4)
    assert [d.file for d in found["train"]][:2] == [
        "train/train_000000.png",
        "train/train_000001.png",
    ]
    assert found["ar4t_x"][5].file == "ar4t/ar4t_x_000005.png"
    for d in found["train"]:
        assert len(d.boxes) == len(d.pixel_coords) == len(d.scene.objects)
        assert all(x >= 0 and x + w <= 24 and w > 0 for x, _, w, _ in d.boxes)
        with Image.open(tmp_path / d.file) as image:
            assert image.size == (24, 24)
            assert image.mode == "RGB"


def test_sub_seeds_differ():
    seeds = {sub_seed(seed, name) for seed in (0, 1) for name in ("train", "val", "test")}
    assert len(seeds) == 6


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
def test_a_device_that_is_not_there(device):
    with pytest.raises(UserError, match="expected a device that torch can use") as caught:
        check_device(device)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_drawn_is_a_user_error(tmp_path):
    spec = WorldSpec(min_visible=1.0)
    with pytest.raises(UserError, match="min_visible: expected every object"):
        draw(chunks(SceneSeries(spec, 0), "train", 1, CANVAS, tmp_path), 1, lambda _: None)
