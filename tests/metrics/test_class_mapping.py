import json
from pathlib import Path

import pytest

from vlmtune.metrics.class_mapping import class_of_id

REAL = Path(__file__).parents[2].parent / "shared/data/pug/class_to_imagenet_idx.json"


def test_classes_are_numbered_by_name_and_the_last_has_a_shared_id():
    classes = class_of_id({"Sweatshirt": [3], "Cat": [1, 0], "Shirt": [3]}, 5)
    assert classes.tolist() == [0, 0, -1, 2, -1]


@pytest.mark.skipif(not REAL.is_file(), reason="the published mapping is not here")
def test_the_published_mapping_against_a_dictionary_filled_class_by_class():
    ids = json.loads(REAL.read_text())
    names = sorted(ids)
    filled = {}
    for number, name in enumerate(names):
        for i in ids[name]:
            filled[i] = number
    assert class_of_id(ids, 1000).tolist() == [filled.get(i, -1) for i in range(1000)]
    # Of 151 classes only "Shirt" has no id of its own.
    assert {names[i] for i in set(range(151)) - set(filled.values())} == {"Shirt"}
    assert names[filled[841]] == "Sweatshirt"
