import json
import random

import pytest
from PIL import Image

from tests.benchmarks.models import by_name, drawn, oracle
from tests.refusals import refused
from vlmtune.benchmarks.vsr import VSR

RELATIONS = ("under", "on", "facing")


def written(folder, rows):
    """Rows of (image, caption, label, relation); even images are of train2017."""
    lines = []
    for image, caption, label, relation in rows:
        split = ("train2017", "val2017")[image % 2]
        (folder / split).mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(folder / split / f"{image}.jpg")
        link = f"http://images.cocodataset.org/{split}/{image}.jpg"
        row = {"image": f"{image}.jpg", "image_link": link, "caption": caption, "label": label}
        lines.append(json.dumps(row | {"relation": relation, "reference_frame": None}))
    path = folder / "vsr.jsonl"
    path.write_text("\n".join(lines))
    return path


def beats(true, false):
    pairs = [(t > f) + 0.5 * (t == f) for t in true for f in false]
    return sum(pairs) / len(pairs)


@pytest.mark.parametrize("seed", range(3))
def test_against_counting_the_pairs(tmp_path, seed):
    rng, look = random.Random(seed), drawn(seed)
    rows = [
        (rng.randrange(6), f"The cat is {i}.", i % 2, RELATIONS[rng.randrange(2)])
        for i in range(30)
    ] + [(0, "The cat is facing the dog.", 1, "facing")]
    made = VSR(str(written(tmp_path, rows)), str(tmp_path), threshold=1.0)
    metrics = made.run(by_name(look)).metrics
    for relation in ("under", "on", None):
        kept = [row for row in rows if relation in (None, row[3])]
        scores = {
            label: [look(f"{i}.jpg", text) for i, text, is_true, _ in kept if is_true == label]
            for label in (0, 1)
        }
        end = "" if relation is None else f"/{relation}"
        true = sum(score > 1 for score in scores[1])
        false = sum(score < 1 for score in scores[0])
        expected = {
            "auroc": beats(scores[1], scores[0]),
            "acc": (true + false) / len(kept),
            "p_c": true / len(scores[1]),
            "p_f": false / len(scores[0]),
        }
        for key, value in expected.items():
            assert metrics[f"{key}{end}"].value == pytest.approx(value), key + end
        assert metrics[f"auroc{end}"].n == len(kept)
    # Of one kind alone nothing can be told apart.
    assert not any("facing" in key for key in metrics)


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
