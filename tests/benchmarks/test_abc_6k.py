import json

import pytest
from PIL import Image

from tests.benchmarks.models import by_text, drawn, oracle
from tests.refusals import refused
from vlmtune.benchmarks.abc_6k import ABC6K

# The first pair is of the released file, as are the forms of the others.
LINES = """A room with blue walls and a white sink and door.
A room with white walls and a blue sink and door .
A kitchen has red cabinets, and white appliances.
A kitchen has white cabinets , and red appliances .
a white bathroom with a black and white shower curtain
a white bathroom with a black and white shower curtain
A black cat is inside a white toilet.
A white cat is inside a black toilet .
a red car .
a blue car .
"""


def written(folder, lines=LINES):
    """The captions are of images 1 to 4, the second one of two, and one is of none."""
    true = lines.splitlines()[::2]
    captions = {
        "val2014": {1: f"{true[0]} ", 2: true[1], 3: true[2]},
        "train2014": {4: true[1], 5: f"{true[3]}\n"},
    }
    files = []
    for split, own in captions.items():
        (folder / split).mkdir()
        names = {i: f"COCO_{split}_{i:012d}.jpg" for i in own}
        for name in names.values():
            Image.new("RGB", (4, 4)).save(folder / split / name)
        content = {
            "images": [{"id": i, "file_name": name} for i, name in names.items()],
            "annotations": [{"image_id": i, "id": 9, "caption": text} for i, text in own.items()],
        }
        path = folder / f"captions_{split}.json"
        path.write_text(json.dumps(content))
        files.append(str(path))
    path = folder / "ABC-6K.txt"
    path.write_text(lines)
    return str(path), files, str(folder)


def test_captions_find_their_image_and_spaces_tell_nothing(tmp_path):
    made = ABC6K(*written(tmp_path))
    items = made.items.kept
    assert [int(item.image.path.stem[-3:]) for item in items] == [1, 2, 5]
    assert items[0].image.path.parent.name == "val2014"
    assert items[1].candidates == (
        "A kitchen has red cabinets, and white appliances.",
        "A kitchen has white cabinets, and red appliances.",
    )
    metrics = made.run(oracle(made)).metrics
    assert (metrics["accuracy"].value, metrics["accuracy"].n) == (1.0, 3)
    assert metrics["accuracy"].chance == 0.5
    # Two captions are the same but for a space; the red car is in no file.
    assert metrics["identical_candidates"].value == 1
    assert metrics["captions_without_image"].value == 1
    assert metrics["captions_without_image"].n == 5


@pytest.mark.parametrize("seed", range(3))
def test_the_reference_takes_the_lines_as_they_are(tmp_path, seed):
    made = ABC6K(*written(tmp_path), convention="reference")
    look, lines = drawn(seed), LINES.splitlines()
    result = made.run(by_text(look))
    won = [look(lines[i]) > look(lines[i + 1]) for i in (0, 2, 4, 6)]
    assert result.metrics["accuracy"].value == pytest.approx(sum(won) / 4)
    assert made.items.kept[0].candidates == tuple(lines[:2])


def test_an_odd_line_is_one_line(tmp_path):
    path, captions, images = written(tmp_path)
    with open(path, "a") as file:
        file.write("a green car\n")
    with refused("lines in pairs in .*vlmtune download abc_6k"):
        ABC6K(path, captions, images).load()
