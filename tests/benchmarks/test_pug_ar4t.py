import itertools

import pytest

from tests.benchmarks.json_files import touch
from tests.benchmarks.models import by_name, check, drawn, oracle, scorer, share
from vlmtune.benchmarks.files import write_csv
from vlmtune.benchmarks.pug_ar4t import COLUMNS, KINDS, PugAR4T


def make(folder, rows, **options):
    """Rows of (relation, caption, alternative, negative's file name, path of the image)."""
    touch(folder, *(row[-1] for row in rows))
    cells = [("Museum", *row) for row in rows]
    path = write_csv(folder / "test.csv", ("Level", *COLUMNS), cells)
    return PugAR4T(path, str(folder), **options)


PAIRS = [
    ("Above", "Cat above dog at beach", "Dog under cat at beach", "1.png", "a/0.png"),
    ("Under", "Cat under dog at beach", "Dog above cat at beach", "0.png", "a/1.png"),
    ("Above", "Red mug and tall vase", "Tall vase and red mug", "3.png", "a/2.png"),
    ("Above", "Tall mug and red vase", "Red vase and tall mug", "2.png", "a/3.png"),
    ("In", "Brick arch and wood crate in forge", "", "5.png", "a/4.png"),
    ("In", "Wood arch and brick crate in forge", "nan", "nan", "a/5.png"),
    ("Inside", "Pizza inside temple", "", "", "a/6.png"),
]


def test_parts_are_relations_and_the_four_kinds_of_attributes_of_table_8(tmp_path):
    result = make(tmp_path, PAIRS).run(by_name(lambda *_: 0.0))
    sizes = {k.split("/")[1]: m.n for k, m in result.metrics.items() if "group_accuracy/" in k}
    kinds = dict.fromkeys(("relations", "above", "under", "colour", "size", "material"), 1)
    assert sizes == {"attributes": 2, **kinds}
    names = " ".join(KINDS.values()).split()
    assert len(names) == len(set(names)) == 30
    assert [len(own.split()) for own in KINDS.values()] == [7, 8, 12, 3]


def test_a_pair_is_one_item_whoever_names_the_other(tmp_path):
    for order in itertools.permutations(PAIRS[:3]):
        assert len(make(tmp_path, order).items.images) == 2


ALIKE = [
    # Equal attributes, and two objects of one name: both captions are true of both scenes.
    ("On", "Red mug and red vase at beach", "Red vase and red mug at beach", "1.png", "0.png"),
    ("On", "Red mug and red vase at beach", "Red vase and red mug at beach", "0.png", "1.png"),
    ("Above", "Cat above cat at beach", "Cat under cat at beach", "3.png", "2.png"),
    ("Under", "Cat under cat at beach", "Cat above cat at beach", "2.png", "3.png"),
]


@pytest.mark.parametrize("convention", ["strict", "reference"])
def test_scores_against_a_loop(tmp_path, convention):
    rows = [*PAIRS, *((*row[:4], f"b/{row[4]}") for row in ALIKE)]
    benchmark = make(tmp_path, rows, convention=convention)
    relations, attributes, material = [(0, 1)], [(2, 3)], [(4, 5)]
    if convention == "reference":  # every pair counts, also one that no model can tell apart
        attributes.append((7, 8))
        relations.append((9, 10))
    parts = {"/relations": relations, "/attributes": attributes + material, "/material": material}
    parts[""] = relations + attributes + material
    for seed in range(6):
        look = drawn(seed, values=3)
        result = benchmark.run(scorer(lambda image, text, look=look: look(image.path, text)))
        check(result, {"pairs_alike": (2, 5)})

        def score(image, text, look=look):
            return look(tmp_path / rows[image][-1], rows[text][1])

        for part, pairs in parts.items():
            text, image, group = [], [], []
            for a, b in pairs:
                own, crossed = (score(a, a), score(b, b)), (score(a, b), score(b, a))
                text.append(own[0] > crossed[0] and own[1] > crossed[1])
                image.append(own[0] > crossed[1] and own[1] > crossed[0])
                group.append(text[-1] and image[-1])
            for kind, wins in (("text", text), ("image", image), ("group", group)):
                check(result, {f"{kind}_accuracy{part}": share(wins)})


def test_negatives_are_looked_for_in_the_folder_first_or_named_by_their_path(tmp_path):
    rows = [
        ("On", "Cat on dog", "", "1.png", "x/0.png"),
        ("Under", "Cat under dog", "", "0.png", "x/1.png"),
        ("On", "Pig on hay", "", "1.png", "y/0.png"),
        ("Under", "Pig under hay", "", "0.png", "y/1.png"),
        ("On", "Mug on box", "", "gone.png", "y/2.png"),
    ]
    benchmark = make(tmp_path, rows)
    texts = benchmark.items.texts
    assert texts == ("Cat on dog", "Cat under dog", "Pig on hay", "Pig under hay")
    assert benchmark.run(oracle(benchmark)).metrics["negatives_missing"].value == 1
    rows = [
        ("On", "Cat on dog", "", "y/1.png", "x/0.png"),
        ("Under", "Cat under pig", "", "", "x/1.png"),
        ("Under", "Cat under dog", "", "", "y/1.png"),
    ]
    assert make(tmp_path, rows).items.texts == ("Cat on dog", "Cat under dog")
