import itertools
import json
from pathlib import Path

import pytest
import torch

from tests.benchmarks.json_files import touch
from tests.benchmarks.models import by_name, check, drawn, mean, share
from tests.refusals import refused
from vlmtune.benchmarks.whats_up import CONTROLLED, QUESTIONS, WhatsUp

SIDES = {
    "controlled_a": ("left_of", "right_of", "on", "under"),
    "controlled_b": ("left_of", "right_of", "in-front_of", "behind"),
}
OBJECTS = ("mug", "beer-bottle", "dog", "book", "cap", "bowl")
SIZES = {"coco_one": 50, "coco_two": 30, "vg_one": 40, "vg_two": 20}


def write(folder: Path, **options) -> WhatsUp:
    """All parts, parts A and B with a set for each two of six objects."""
    for part, (file, images) in CONTROLLED.items():
        rows = []
        for side in SIDES[part]:
            for one, two in itertools.combinations(OBJECTS, 2):
                name = f"{one}_{side}_{two}.jpeg"
                touch(folder / images, name)
                others = [other for other in SIDES[part] if other != side]
                captions = [f"A {one} {words} a {two}" for words in (side, *others)]
                row = {"image_path": f"data/{images}/{name}", "caption_options": captions}
                rows.append(row)
        (folder / file).write_text(json.dumps(rows))
    for part, file in QUESTIONS.items():
        rows = []
        for number in range(SIZES[part]):
            image = f"vg_images/{number}.jpg"
            if part.startswith("coco"):
                image = f"val2017/{number:012d}.jpg"
            touch(folder, image)
            rows.append([number, f"{part} {number} left", f"{part} {number} right"])
        (folder / file).write_text(json.dumps(rows))
    return WhatsUp(str(folder), str(folder), str(folder / "val2017"), **options)


def rows_of(folder: Path, part: str) -> list[tuple[str, list[str]]]:
    """Image and captions of each row."""
    if part in CONTROLLED:
        rows = json.loads((folder / CONTROLLED[part][0]).read_text())
        return [(Path(row["image_path"]).name, row["caption_options"]) for row in rows]
    rows = json.loads((folder / QUESTIONS[part]).read_text())
    width = 12 if part.startswith("coco") else 0
    return [(f"{number:0{width}d}.jpg", captions) for number, *captions in rows]


@pytest.mark.parametrize("convention", ["strict", "reference"])
def test_against_the_rules_of_the_released_script(tmp_path, convention):
    made = write(tmp_path, convention=convention)
    noise = drawn(0, values=4)
    parts = (*CONTROLLED, *QUESTIONS)
    rows = [row for part in parts for row in rows_of(tmp_path, part)]
    true_pairs = {(name, captions[0]) for name, captions in rows}

    def look(*pair):  # true captions score better, so that whole sets are right
        return noise(*pair) + 2 * (pair in true_pairs)

    result = made.run(by_name(look))
    accuracies = []
    for part in parts:
        right = {}
        for name, captions in rows_of(tmp_path, part):
            true, *false = [look(name, caption) for caption in captions]
            # argmax takes the first of the best, and the first caption is the true one.
            best = max(false)
            right[name] = true >= best if convention == "reference" else true > best
        accuracies.append(mean(right.values()))
        chance = 0.25 if part in CONTROLLED else 0.5
        check(result, {f"accuracy/{part}": share(right.values(), chance)})
        if part not in CONTROLLED:
            continue
        pairs, sets, matched = [], [], []
        one, two, three, four = SIDES[part]
        for first, second in itertools.combinations(OBJECTS, 2):
            won = {side: right[f"{first}_{side}_{second}.jpeg"] for side in SIDES[part]}
            pairs += [won[one] and won[two], won[three] and won[four]]
            sets.append(all(won.values()))
            names = [f"{first}_{side}_{second}.jpeg" for side in SIDES[part]]
            texts = [f"A {first} {side} a {second}" for side in SIDES[part]]
            totals = []
            for order in itertools.permutations(texts):
                totals.append(sum(map(look, names, order)))
            matched.append(totals[0] > max(totals[1:]))
        assert sum(pairs) > sum(sets) > 0
        expected = {"pair_accuracy": share(pairs, 1 / 16), "set_accuracy": share(sets, 1 / 256)}
        expected |= {"group_match": share(matched, 1 / 24)}
        check(result, {f"{name}/{part}": numbers for name, numbers in expected.items()})
    check(result, {"macro_accuracy": (mean(accuracies), 6, (2 * 0.25 + 4 * 0.5) / 6)})
    assert result.primary == "macro_accuracy"


def test_what_a_limit_cuts_is_no_pair_and_a_name_without_preposition_refused(tmp_path):
    made = write(tmp_path, parts=["controlled_a", "vg_one"], limit=2, seed=None)
    metrics = made.run(lambda images, texts, pairs: torch.rand(len(pairs))).metrics
    assert metrics["accuracy"].n == 4
    assert not [key for key in metrics if key.startswith(("pair", "set", "group"))]
    made = write(tmp_path)
    path = tmp_path / "controlled_images_dataset.json"
    path.write_text('[{"image_path": "a.jpeg", "caption_options": ["b", "c"]}]')
    with refused("<object>_<preposition>_<object>.jpeg"):
        WhatsUp(made.path, made.images, made.coco).load()
