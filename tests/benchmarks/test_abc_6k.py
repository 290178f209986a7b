from tests.benchmarks.json_files import touch, write
from tests.benchmarks.models import by_text, check, drawn, oracle, share
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
        names = {i: f"COCO_{split}_{i:012d}.jpg" for i in own}
        touch(folder / split, *names.values())
        images = [{"id": i, "file_name": name} for i, name in names.items()]
        texts = [{"image_id": i, "id": 9, "caption": text} for i, text in own.items()]
        content = {"images": images, "annotations": texts}
        files.append(str(write(folder, content, f"captions_{split}.json")))
    (folder / "ABC-6K.txt").write_text(lines)
    return str(folder / "ABC-6K.txt"), files, str(folder)


def test_captions_find_their_image_and_spaces_tell_nothing(tmp_path):
    made = ABC6K(*written(tmp_path))
    items = made.items.kept
    assert [int(item.image.path.stem[-3:]) for item in items] == [1, 2, 5]
    assert items[0].image.path.parent.name == "val2014"
    assert items[1].candidates == (
        "A kitchen has red cabinets, and white appliances.",
        "A kitchen has white cabinets, and red appliances.",
    )
    # Two captions are the same but for a space; the red car is in no file.
    expected = {"identical_candidates": (1,), "captions_without_image": (1, 5)}
    check(made.run(oracle(made)), {"accuracy": (1.0, 3, 0.5)} | expected)


def test_the_reference_takes_the_lines_as_they_are(tmp_path):
    made = ABC6K(*written(tmp_path), convention="reference")
    lines = LINES.splitlines()
    assert made.items.kept[0].candidates == tuple(lines[:2])
    for seed in range(3):
        look = drawn(seed)
        won = [look(lines[i]) > look(lines[i + 1]) for i in (0, 2, 4, 6)]
        check(made.run(by_text(look)), {"accuracy": share(won)})


def test_an_odd_line_is_one_line(tmp_path):
    path, captions, images = written(tmp_path)
    with open(path, "a") as file:
        file.write("a green car\n")
    with refused("lines in pairs in .*vlmtune download abc_6k"):
        ABC6K(path, captions, images).load()
