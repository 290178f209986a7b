import re
from collections import Counter

import pytest

from data_builders.corpora.ar4t import AR4TBuilder
from data_builders.worlds.scenes.captions import vocabulary
from tests.data_builders.conftest import RICH, rendered, rows_of
from vlmtune.benchmarks.pug_ar4t import PugAR4T

INVERSE = {
    "to the left of": "to the right of",
    "in front of": "behind",
    "above": "below",
    "on top of": "under",
}
INVERSE |= {inverse: phrase for phrase, inverse in INVERSE.items()}


def pairs_of(rows):
    return [row for row in rows if row["filename_neg"]]


@pytest.mark.parametrize(("name", "count"), [("PUG_AR_train", 16), ("PUG_ARmerged_test", 4)])
def test_rows(world, name, count):
    rows = pairs_of(rows_of(world / f"ar4t/{name}.csv"))
    assert len(rows) == count
    assert len(rows[0]) == 25
    by_name = {row["filename"]: row for row in rows}
    kinds = set()
    for row in rows:
        assert (world / "images" / row["filepath"]).is_file()
        negative = by_name[row["filename_neg"]]
        assert negative["filename_neg"] == row["filename"]
        kinds.add(row["Relation"])
        a, b = row["Actor1Category"], row["Actor2Category"]
        if row["Relation"] == "and":
            assert row["caption"].startswith(
                f"{row['Actor1Attribute']} {a} and {row['Actor2Attribute']} {b} on "
            )
            assert negative["Actor1Attribute"] == row["Actor2Attribute"]
            assert sorted(row["caption"].split()) == sorted(negative["caption"].split())
        else:
            inverse = INVERSE[row["Relation"]]
            assert row["caption"].startswith(f"{a} {row['Relation']} {b} on ")
            assert row["alt_caption"].startswith(f"{b} {inverse} {a} on ")
            assert negative["caption"].startswith(f"{a} {inverse} {b} on ")
    assert "and" in kinds
    assert len(kinds) > 1


def test_scenes_of_one_object_are_in_training_alone(rich):
    assert len(pairs_of(rows_of(rich / "ar4t/PUG_ARmerged_test.csv"))) == 2 * RICH["ar4t_test"]
    assert len(rows_of(rich / "ar4t/PUG_ARmerged_test.csv")) == 2 * RICH["ar4t_test"]
    rows = rows_of(rich / "ar4t/PUG_AR_train.csv")
    singles = [row for row in rows if not row["filename_neg"]]
    unary = [row for row in singles if not row["Actor1Attribute"]]
    assert (len(rows) - len(singles), len(unary), len(singles) - len(unary)) == (128, 19, 4)
    for row in singles:
        words = [row["Actor1Attribute"]] * bool(row["Actor1Attribute"]) + [row["Actor1Category"]]
        assert row["caption"].startswith(f"{' '.join(words)} on ")
        assert row["caption"].endswith((row["Level"], f"{row['Level']} floor"))
        assert row["Relation"] == "on"
        assert not row["alt_caption"]
        assert not row["Actor2Category"]
        assert (rich / "images" / row["filepath"]).is_file()
    shapes = Counter(row["Actor1Category"] for row in unary)
    assert max(shapes.values()) - min(shapes.values()) <= 1
    words = {word for row in rows for word in f"{row['caption']} {row['alt_caption']}".split()}
    assert words <= set(vocabulary())
    assert {"above", "below", "top", "under", "left", "right", "front", "behind"} <= words


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    """Pairs and scenes of one object as in appendix B.5, 28 pairs of both kinds in each split."""
    options = RICH | {"ar4t_train": 28, "ar4t_test": 28, "image_size": 16, "ar4t_form": "paper"}
    return rendered(tmp_path_factory.mktemp("paper") / "world", options)


@pytest.mark.parametrize(("name", "isolated"), [("PUG_AR_train", 2), ("PUG_ARmerged_test", 10)])
def test_the_papers_form_has_scenes_of_one_object_in_both_splits(paper, name, isolated):
    rows = rows_of(paper / f"ar4t/{name}.csv")
    singles = [row for row in rows if not row["filename_neg"]]
    unary = [row for row in singles if not row["Actor1Attribute"]]
    # Three unary relations beside ten binary ones; attributes: 28 scenes, of 14 values.
    assert (len(rows) - len(singles), len(unary), len(singles) - len(unary)) == (56, 8, isolated)
    assert {row["Relation"] for row in singles} == {"at", "in", "inside"}
    for row in rows:
        assert (paper / "images" / row["filepath"]).is_file()
        assert re.search(" (at|in|inside) [a-z]+( floor)?$", row["caption"])
    pairs = [row for row in pairs_of(rows) if row["Relation"] == "and"]
    stated = [(row["Actor1Attribute"], row["Actor2Attribute"]) for row in pairs]
    assert len(stated) == 28
    assert any({"rubber", "metal"} & {a} and b not in ("rubber", "metal") for a, b in stated)


def test_the_builder_and_the_benchmark_read_the_papers_form(paper, tmp_path):
    builder = AR4TBuilder(paper / "ar4t/PUG_AR_train.csv", paper / "images")
    builder.build(tmp_path / "all", progress=False)
    expected = {"pairs": 28, "without negative": 10, "relations": 28 + 8, "attributes": 28 + 2}
    assert {name: builder.counts[name] for name in expected} == expected
    benchmark = PugAR4T(str(paper / "ar4t/PUG_ARmerged_test.csv"), str(paper / "images"))
    metrics = benchmark.run(lambda *_: benchmark.items.truth.float()).metrics
    assert metrics["group_accuracy/relations"].n == metrics["group_accuracy/attributes"].n == 14
    assert metrics["pairs_alike"].value == metrics["negatives_missing"].value == 0
    # Every word of table 7 opens a pair once or twice, and is a negative of others.
    for word in ("above", "on top of", "on", "below", "beneath", "under", "behind"):
        assert metrics[f"group_accuracy/{word}"].value == 1.0
    assert metrics["group_accuracy/colour"].n + metrics["group_accuracy/material"].n > 8
