import json
import random
from pathlib import Path

import pytest
import torch

from tests.refusals import refused
from vlmtune.metrics.class_mapping import class_of_id

REAL = Path(__file__).parents[2].parent / "shared/data/pug/class_to_imagenet_idx.json"


def test_classes_are_numbered_by_name_and_the_last_has_a_shared_id():
    classes = class_of_id({"Sweatshirt": [3], "Cat": [1, 0], "Shirt": [3]}, 5)
    assert classes.tolist() == [0, 0, -1, 2, -1]


def test_an_id_out_of_range_raises():
    with refused("got 5 for 'Cat'"):
        class_of_id({"Cat": [5]}, 5)


@pytest.mark.skipif(not REAL.is_file(), reason="the published mapping is not here")
def test_the_published_mapping_against_a_dictionary_filled_class_by_class():
    ids = json.loads(REAL.read_text())
    names = sorted(ids)
    filled = {}
    for number, name in enumerate(names):
        for i in ids[name]:
            filled[i] = number
    rng = random.Random(0)
    predicted = [rng.randrange(1000) if k % 3 else rng.choice(list(filled)) for k in range(2000)]
    labels = [rng.randrange(151) if k % 2 else filled.get(predicted[k], 0) for k in range(2000)]
    naive = [filled.get(p, 999) == label for p, label in zip(predicted, labels, strict=True)]
    hits = class_of_id(ids, 1000)[torch.tensor(predicted)] == torch.tensor(labels)
    assert hits.tolist() == naive
    assert 0 < sum(naive) < 2000
    # Of 151 classes only "Shirt" has no id of its own.
    assert {names[i] for i in set(range(151)) - set(filled.values())} == {"Shirt"}
    assert names[filled[841]] == "Sweatshirt"
