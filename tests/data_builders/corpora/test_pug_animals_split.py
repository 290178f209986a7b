"""Values of a factor are withheld from the animals that are not complete."""

from collections import Counter, defaultdict
from itertools import product
from pathlib import Path

import pytest

from data_builders.corpora.pug_animals_split import COLUMN, PugAnimalsSplitBuilder
from tests.data_builders.conftest import rows_of
from tests.refusals import refused
from vlmtune.benchmarks.files import write_csv

VALUES = {
    "world_name": [f"World{k}" for k in range(6)],
    "character_scale": ["0.7", "1", "1.3"],
    "character_texture": ["Default", "Grass", "Sky", "Asphalt"],
}
ANIMALS = ["PolarBear", "Penguin", "Cat", "Dog", "Goat"]


@pytest.fixture(scope="module")
def labels(tmp_path_factory):
    path = tmp_path_factory.mktemp("pug") / "labels_pug_animal.csv"
    grid = enumerate(product(ANIMALS, *VALUES.values()))
    rows = [[f"{number:06d}.png", *row] for number, row in grid]
    return Path(write_csv(path, ["filename", "character_name", *VALUES], rows))


def table(labels, out, **options):
    PugAnimalsSplitBuilder(labels, **options).build(out, progress=False)
    return rows_of(out / "animals.csv")


def shown(rows, split):
    """The values of each animal in a split."""
    values = defaultdict(set)
    for row in rows:
        if row["split"] == split:
            values[row["image"].partition("/")[0]].add(row["group"])
    return values


@pytest.mark.parametrize(("factor", "kept"), [("background", 4), ("size", ["1"]), ("texture", 1)])
@pytest.mark.parametrize("complete", [0, 2])
def test_training_lacks_the_values(labels, tmp_path, factor, kept, complete):
    rows = table(labels, tmp_path / "out", factor=factor, kept=kept, complete=complete, val=0.0)
    every = set(VALUES[COLUMN[factor]])
    train, test = shown(rows, "train"), shown(rows, "test")
    number = kept if isinstance(kept, int) else len(kept)
    whole = [animal for animal in ANIMALS if train[animal] == every]
    assert len(whole) == complete
    assert not set(whole) & set(test)
    kept_values = {frozenset(train[animal]) for animal in ANIMALS if animal not in whole}
    assert len(kept_values) == 1
    (left,) = kept_values
    assert len(left) == number
    assert all(test[animal] == every - left for animal in ANIMALS if animal not in whole)
    assert len(rows) == len(ANIMALS) * 6 * 3 * 4


def test_the_table(labels, tmp_path):
    rows = table(labels, tmp_path / "out", kept=3, val=0.25)
    assert rows[0]["image"] == "PolarBear/000000.png"
    assert rows[0]["caption"] == "a photo of a polar bear"
    sizes = Counter(row["split"] for row in rows)
    assert sizes["test"] == sizes["train"] + sizes["val"] == 180
    assert 25 <= sizes["val"] <= 65
    assert shown(rows, "val").keys() == set(ANIMALS)
    assert rows == table(labels, tmp_path / "again", kept=3, val=0.25)
    assert rows != table(labels, tmp_path / "other", kept=3, val=0.25, seed=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kept": 6}, "expected 1 to 5 values"),
        ({"kept": 0}, "expected 1 to 5 values"),
        ({"kept": ["Mars"]}, "expected 1 to 5 values"),
        ({"kept": 2, "complete": 5}, "fewer complete animals than 5"),
    ],
)
def test_refusals(labels, tmp_path, options, message):
    with refused(message):
        table(labels, tmp_path / "out", **options)
