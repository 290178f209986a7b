import re

from data_builders.corpora.half_truths import FILE, HalfTruthsBuilder
from tests.data_builders.conftest import load
from tests.data_builders.corpora.graphs import gqa, numbered
from vlmtune.benchmarks.half_truths import HalfTruths

IMAGES = {
    "1": numbered("red car", "tall palm_tree", "blue car", "man"),
    "2": numbered("green bus", "brown horse", "wooden fence", "tall lamp"),
    "3": numbered("red bus", "tall towers", "green tree", "white horse"),
    "4": numbered("blue car", "car"),
    "5": numbered("window"),
    "6": numbered("wooden table", "metal table", "red cup", "brown sheep"),
}
RELATIONS = {
    "1": [("0", "to the left of", "1"), ("1", "near", "2"), ("3", "near", "0")],
    "2": [("0", "behind", "1"), ("2", "behind", "0"), ("0", "behind", "2")],
    "6": [("2", "on", "0"), ("2", "under", "0"), ("1", "to the left of", "3")],
}
# The graph states that the cup of image 6 is on a table, and that it is under it.
OPPOSITES = {("to the left of", "to the right of"), ("behind", "in front of")}


def built(folder, **options):
    folder.mkdir()
    builder = HalfTruthsBuilder(gqa(folder, IMAGES, RELATIONS), **options)
    builder.build(folder / "out", progress=False)
    return folder / "out", load(folder / "out" / FILE), builder.counts


def described(text):
    """The attribute and the name of a phrase."""
    return re.sub("^an? ", "", text).split(" ", 1)


def objects_of(image):
    return [text.replace("_", " ").split(" ", 1) for text in IMAGES[image].values()]


def test_each_foil_is_false_of_the_graph(tmp_path):
    corpus = [described for image in IMAGES for described in objects_of(image)]
    foils = {"attribute": 0, "name": 0, "relation": 0, "object": 0}
    for seed in range(20):
        _, records, _ = built(tmp_path / f"{seed}", seed=seed, entities=9, relations=9)
        for record in records:
            image = record["image_path"].removesuffix(".jpg")
            objects = objects_of(image)
            shown = {word for phrase in objects for words in phrase for word in words.split()}
            for entity, negatives in record["negative_entities"].items():
                assert described(entity) in objects
                for foil in negatives:
                    attribute, name = described(foil["negative"])
                    changed = described(entity)[0] != attribute
                    assert changed != (described(entity)[1] != name)
                    assert [attribute, name] in corpus
                    assert shown.isdisjoint([attribute] if changed else name.split())
                    foils["attribute" if changed else "name"] += 1
            stated = {
                (tuple(objects[int(i)]), phrase, tuple(objects[int(j)]))
                for i, phrase, j in RELATIONS.get(image, ())
            }
            for relation in record["relations"]:
                first, second = (tuple(described(relation[key])) for key in ("subject", "object"))
                true = relation["relation_type"]
                assert (first, true, second) in stated
                for foil in relation["negatives"]:
                    assert foil["subject"] == relation["subject"]
                    if foil["object"] == relation["object"]:
                        assert (true, foil["relation_type"]) in OPPOSITES
                        assert (first, foil["relation_type"], second) not in stated
                        foils["relation"] += 1
                    else:
                        assert foil["relation_type"] == true
                        assert shown.isdisjoint(described(foil["object"])[1].split())
                        foils["object"] += 1
    assert min(foils.values()) >= 20, foils


def test_the_same_bytes_and_items_of_the_benchmark(tmp_path):
    out, records, counts = built(tmp_path / "a", relations=1)
    again, _, _ = built(tmp_path / "b", relations=1)
    assert (out / FILE).read_bytes() == (again / FILE).read_bytes()
    # Images 4 and 5 have one entity or none.
    assert counts["skipped: fewer than two objects"] == 2
    assert counts["images"] == len(records) == 4
    benchmark = HalfTruths(str(out / FILE), str(tmp_path / "a"))
    benchmark.load()
    groups = [item.group for item in benchmark.read()]
    assert groups.count("entity") >= counts["entities"]
    assert groups.count("relation") >= counts["relations"] > 0
