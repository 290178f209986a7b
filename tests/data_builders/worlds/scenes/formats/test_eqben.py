from collections import Counter

import numpy as np
import pytest
from PIL import Image

from tests.data_builders.conftest import SUITE, eqben_items, load
from tests.data_builders.worlds.scenes.truth import holds
from vlmtune.benchmarks.eqben import PARTS, EqBen
from vlmtune.data.images import open_image

EACH: int = SUITE["benchmarks"]


def scene_of(graphs, image):
    """The scene graph of an image; GEBC's frames are those of the videos."""
    part, name = image.partition("/")[0], image.rpartition("/")[2]
    series = "videos" if part == "eqbengebc" else part.removeprefix("eqben").removeprefix("kubric_")
    return graphs[series][name]


@pytest.mark.parametrize("part", PARTS)
def test_each_caption_is_true_of_its_image_alone(suite, graphs, part):
    rows = eqben_items(load(suite / f"eqben/{part}.json"))
    assert len(rows) == EACH
    for row in rows:
        texts = [row[f"caption{i}"] for i in (0, 1)]
        if part == "eqbenag":
            assert [len(own) for own in texts] == [2, 2]
        for captions in zip(*texts, strict=True) if part == "eqbenag" else [texts]:
            for i in (0, 1):
                scene = scene_of(graphs, row[f"image{i}"])
                assert [holds(scene, text) for text in captions] == [i == 0, i == 1], row
        for i in (0, 1):
            assert row[f"image{i}"].startswith(f"{part}/")
            assert (suite / "images/eqben" / row[f"image{i}"]).is_file()


def test_kubrics_parts_are_one_list_and_items_of_videos_stand_under_theirs(suite):
    parts = [load(suite / f"eqben/eqbenkubric_{part}.json") for part in ("loc", "cnt", "attr")]
    assert load(suite / "eqben/eqben_kubric.json") == [row for part in parts for row in part]
    for part in ("eqbenag", "eqbenyoucook2", "eqbengebc"):
        for video, own in load(suite / f"eqben/{part}.json").items():
            if part == "eqbenag":
                ((subject, own),) = own.items()
                assert subject in own[0]["caption0"][0]
            assert [row["image0"].split("/")[1] for row in own] == [video]


def test_youcook2s_frames_are_arrays_blue_first(suite, graphs):
    colors = {"red": 0, "green": 1, "blue": 2}
    checked = Counter()
    for row in eqben_items(load(suite / "eqben/eqbenyoucook2.json")):
        path = suite / "images/eqben" / row["image0"]
        frame, image = np.load(path), np.asarray(open_image(path))
        assert (frame.dtype, frame.shape) == (np.uint8, (SUITE["image_size"],) * 2 + (3,))
        assert (image == frame[..., ::-1]).all()
        for thing in scene_of(graphs, row["image0"])["objects"]:
            if thing["color"] in colors and thing["material"] == "rubber":
                x, y, w, h = thing["box"]
                middle = image[y : y + h, x : x + w].mean((0, 1))
                checked[int(middle.argmax()) == colors[thing["color"]]] += 1
    assert checked[True] > checked[False]


def test_gebcs_frames_are_those_of_the_videos(suite):
    for row in eqben_items(load(suite / "eqben/eqbengebc.json")):
        for name in (row["image0"], row["image1"]):
            frame = suite / "images/geb" / name.removeprefix("eqbengebc/")
            assert (suite / "images/eqben" / name).read_bytes() == frame.read_bytes()


@pytest.mark.parametrize("whole", [True, False])
def test_the_reader_reads_it(suite, whole):
    parts = {part: str(suite / f"eqben/{part}.json") for part in PARTS}
    path = str(suite / "eqben/eqben_kubric.json") if whole else parts
    benchmark = EqBen(path, str(suite / "images/eqben"))
    metrics = benchmark.run(lambda *_: benchmark.items.truth.float()).metrics
    assert metrics["average"].value == 1.0
    assert metrics["group_accuracy"].n == (3 * EACH if whole else EACH * len(PARTS))
    for image in benchmark.items.images:
        assert isinstance(open_image(image.path), Image.Image)
