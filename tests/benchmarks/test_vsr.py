import json
import random

import pytest

from tests.benchmarks.json_files import touch
from tests.benchmarks.models import by_name, check, drawn, mean, oracle, share
from tests.refusals import refused
from vlmtune.benchmarks.vsr import VSR

RELATIONS = ("under", "on", "facing")


def written(folder, rows):
    """Rows of (image, caption, label, relation); even images are of train2017."""
    lines = []
    for image, caption, label, relation in rows:
        split = ("train2017", "val2017")[image % 2]
        touch(folder / split, f"{image}.jpg")
        link = f"http://images.cocodataset.org/{split}/{image}.jpg"
        row = {"image": f"{image}.jpg", "image_link": link, "caption": caption, "label": label}
        lines.append(json.dumps(row | {"relation": relation, "reference_frame": None}))
    path = folder / "vsr.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("seed", range(3))
def test_against_counting_the_pairs(tmp_path, seed):
    rng, look = random.Random(seed), drawn(seed)
    rows = [
        (rng.randrange(6), f"The cat is {i}.", i % 2, RELATIONS[rng.randrange(2)])
        for i in range(30)
    ] + [(0, "The cat is facing the dog.", 1, "facing")]
    made = VSR(str(written(tmp_path, rows)), str(tmp_path), threshold=1.0)
    result = made.run(by_name(look))
    for relation in ("/under", "/on", ""):
        scores = {0: [], 1: []}
        for i, text, label, of in rows:
            if relation in ("", f"/{of}"):
                scores[label].append(look(f"{i}.jpg", text))
        told = [score > 1 for score in scores[1]], [score < 1 for score in scores[0]]
        beaten = mean((t > f) + 0.5 * (t == f) for t in scores[1] for f in scores[0])
        expected = {"auroc": (beaten, sum(map(len, told))), "acc": share(told[0] + told[1])}
        expected |= {"p_c": share(told[0]), "p_f": share(told[1])}
        check(result, {f"{key}{relation}": numbers for key, numbers in expected.items()})
    # What the report compares item by item is of all statements; either kind's mean is the area.
    assert len(result.outcomes) == len(rows)
    for label in (0, 1):
        of_kind = [x for x, g in zip(result.outcomes, result.groups, strict=True) if g == label]
        assert mean(of_kind) == pytest.approx(result.metrics["auroc"].value)
    # Of one kind alone nothing can be told apart.
    assert not any("facing" in key for key in result.metrics)


def test_images_lie_in_the_folders_of_their_links_or_in_one(tmp_path):
    rows = [(0, "a", 1, "on"), (1, "b", 0, "on")]
    path = written(tmp_path, rows)
    made = VSR(str(path), str(tmp_path))
    assert [image.path.parent.name for image in made.items.images] == ["train2017", "val2017"]
    (tmp_path / "val2017/1.jpg").rename(tmp_path / "1.jpg")
    made = VSR(str(path), str(tmp_path))
    assert made.items.images[1].path == tmp_path / "1.jpg"
    assert made.run(oracle(made)).metrics["auroc"].value == 1.0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((0, "a", 2, "on"), "a label 0 or 1.* got 2 at 0/label"),
        ((0, "a", 1, "on"), "true and of false captions, got 1 and 0"),
    ],
)
def test_a_file_without_labels_or_without_false_statements(tmp_path, row, message):
    made = VSR(str(written(tmp_path, [row])), str(tmp_path))
    with refused(message):
        made.run(oracle(made))
