from tests.data_builders.conftest import SUITE, load
from tests.data_builders.worlds.scenes.truth import holds
from vlmtune.benchmarks.half_truths import HalfTruths


def test_the_short_description_is_true_and_the_half_truth_false(suite, graphs):
    path, images = suite / "half_truths/units.json", suite / "images/suite"
    items = HalfTruths(str(path), str(images)).read()
    for item in items:
        scene = graphs["scenes"][item.image.path.name]
        short, long = item.candidates
        assert holds(scene, short), item
        assert not holds(scene, long), item
    assert len(load(path)) == SUITE["benchmarks"]
    # Each kind of detail comes often enough to report its accuracy apart.
    groups = [item.group for item in items]
    assert min(groups.count("entity"), groups.count("relation")) >= len(load(path))


def test_a_foil_changes_one_thing(suite, graphs):
    for record in load(suite / "half_truths/units.json"):
        scene = graphs["scenes"][record["image_path"]]
        assert holds(scene, record["original_caption"])
        assert set(record["negative_entities"]) == set(record["entities"])
        for entity, foils in record["negative_entities"].items():
            assert holds(scene, entity)
            for foil in foils:
                text = foil["negative"]
                assert not holds(scene, text)
                # An article may follow its noun.
                pairs = zip(entity.split()[1:], text.split()[1:], strict=True)
                assert sum(a != b for a, b in pairs) == 1
        (relation,) = record["relations"]
        for foil in relation["negatives"]:
            keys = ("subject", "relation_type", "object")
            assert sum(relation[key] != foil[key] for key in keys) == 1
