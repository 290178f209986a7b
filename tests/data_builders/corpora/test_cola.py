import re
from pathlib import Path

import pytest

from data_builders.corpora.annotations import ClevrScenes, VisualGenomeGraphs
from data_builders.corpora.cola import ColaBuilder
from tests.data_builders.conftest import dump, groups, load, truths, unseen_of
from tests.data_builders.corpora.graphs import PAIR, by_brute_force
from tests.refusals import refused
from vlmtune.config import instantiate
from vlmtune.data.schema import read_manifest


def reader(world: Path, split: str = "train", **arguments) -> ClevrScenes:
    return ClevrScenes(world / f"clevr/scenes_{split}.json", world / f"images/{split}", **arguments)


def naively_true(text: str, scene: dict) -> bool:
    objects = [{o["color"], o["material"], o["shape"]} for o in scene["objects"]]
    return by_brute_force(text, objects)


def compositions(text: str) -> set[tuple[str, str]]:
    match = PAIR.fullmatch(text)
    return {
        (word, part.split()[-1])
        for part in (match.groups() if match else (text,))
        for word in part.split()[:-1]
    }


def test_truth_by_brute_force(world, clevr):
    built = groups(ColaBuilder(reader(world, "test"), multi_half_wrong=1))
    assert len(built) == 8
    corpus = {text for group in built for text in group.texts}
    for group in built:
        scene = clevr[f"test/{group.image_ids[0]}.png"]
        assert group.exhaustive
        assert group.text_ids == group.texts
        for text, true in truths(group).items():
            assert true == naively_true(text, scene), text
        # Exhaustive means of every caption of the corpus, not only of the group.
        for text in corpus:
            assert (text in group.true_ids[0]) == naively_true(text, scene), text


def test_hard_negatives_are_of_the_image(world, clevr):
    built = groups(ColaBuilder(reader(world), half_wrong=0, single=9, misbound=9, multi=9))
    twins = 0
    for group in built:
        objects = clevr[f"train/{group.image_ids[0]}.png"]["objects"]
        words = {o[k] for o in objects for k in ("color", "material", "shape")} | {"a", "and"}
        true = [t for t, yes in truths(group).items() if yes]
        false = set(group.texts) - set(true)
        assert all(set(text.split()) <= words for text in group.texts)
        for text in true:
            if match := PAIR.fullmatch(text):
                (c1, s1), (c2, s2) = (part.split() for part in match.groups())
                twins += f"a {c2} {s1} and a {c1} {s2}" in false
    assert twins >= 5


def scene_file(folder: Path, *objects: str) -> ClevrScenes:
    """CLEVR scenes of one image; an object is "color shape"."""
    objects = [dict(zip(("color", "shape"), t.split(), strict=True)) for t in objects]
    path = dump(
        folder / "scenes.json", {"scenes": [{"image_filename": "a.png", "objects": objects}]}
    )
    (folder / "a.png").touch()
    return ClevrScenes(path, folder, ["color"], ["color"])


def test_a_twin_that_is_true_of_other_objects_is_no_negative(tmp_path):
    everything = {"single": 9, "misbound": 9, "half_wrong": 0, "multi": 9, "multi_misbound": 9}
    objects = ("red cube", "blue cone", "blue cube", "red cone")
    (group,) = groups(ColaBuilder(scene_file(tmp_path, *objects), **everything))
    assert group.truth.all()
    (group,) = groups(ColaBuilder(scene_file(tmp_path, *objects[:3]), **everything))
    false = {t for t, yes in truths(group).items() if not yes}
    assert "red cone" in false
    assert not any(naive in false for naive in ("red cube", "blue cone", "blue cube"))
    # Of "red cube and blue cone" the twin needs a red cone, of "blue cube and blue cone" there is
    # none, as nothing would change.
    assert {t for t in false if t.startswith("a blue cube and a red cone")} | {
        t for t in false if t.startswith("a red cone and a blue cube")
    }


@pytest.mark.parametrize("more", [{}, {"misbound": 0, "half_wrong": 0, "multi_misbound": 0}])
def test_without_twins_the_rest_is_the_same(world, more):
    with_twins = groups(ColaBuilder(reader(world), **more))
    without_twins = groups(ColaBuilder(reader(world), twins=False, **more))
    assert [g.key for g in without_twins] == [g.key for g in with_twins]
    left_out = 0
    for group, rest in zip(with_twins, without_twins, strict=True):
        true, false = set(), set()
        for text, yes in truths(group).items():
            (true if yes else false).add(text)
        twins = set()
        for text in true:
            if match := PAIR.fullmatch(text):
                (c1, s1), (c2, s2) = (part.split() for part in match.groups())
                twins |= {f"a {c2} {s1} and a {c1} {s2}"} & false
        left_out += len(twins)
        assert true <= set(rest.texts) <= set(group.texts)
        # A twin may be drawn as a misbound query, too.
        assert set(group.texts) - set(rest.texts) <= twins
        if more:
            assert set(rest.texts) == true
            assert false == twins
        assert rest.true_ids == group.true_ids
    assert left_out >= 5


def test_measured_images_are_left_out(world, tmp_path):
    benchmark = dump(tmp_path / "multi.json", [["https://a.org/train_000003.png", "a", "b", "c"]])
    builder = ColaBuilder(reader(world), measured=[benchmark])
    assert "train_000003" in {g.image_ids[0] for g in groups(ColaBuilder(reader(world)))}
    assert "train_000003" not in {g.image_ids[0] for g in groups(builder)}
    assert builder.counts["skipped: measured"] == 1
    assert builder.sources()["multi.json"] == benchmark


def test_idle_options_are_not_recorded(world):
    assert not {"twins", "measured"} & ColaBuilder(reader(world)).spec()["init_args"].keys()
    spec = ColaBuilder(reader(world), twins=False, measured=["a.json"]).spec()["init_args"]
    assert (spec["twins"], spec["measured"]) == (False, ["a.json"])


def test_half_wrong_queries_have_one_foreign_word(world, clevr):
    builder = ColaBuilder(reader(world), single=2, misbound=0, half_wrong=2, multi=0)
    checked = 0
    for group in groups(builder):
        objects = clevr[f"train/{group.image_ids[0]}.png"]["objects"]
        words = {o[k] for o in objects for k in ("color", "material", "shape", "size", "texture")}
        for text, true in truths(group).items():
            assert len(set(text.split()) - words) == (0 if true else 1)
            checked += not true
    assert checked > 10


def test_no_query_has_an_excluded_composition(world):
    unseen = unseen_of(world)
    every = {"single": 9, "misbound": 9, "half_wrong": 3, "multi": 9, "multi_half_wrong": 2}
    for split in ("train", "test"):
        strict = groups(
            ColaBuilder(reader(world, split), exclude=world / "compositions.json", **every)
        )
        texts = {t for g in strict for t in (*g.texts, *g.true_ids[0])}
        assert not unseen & {c for text in texts for c in compositions(text)}
    free = groups(ColaBuilder(reader(world), **every))
    assert unseen & {c for g in free for text in g.texts for c in compositions(text)}


def test_attribute_order_does_not_depend_on_the_argument(world):
    a = groups(ColaBuilder(reader(world, single=["material", "color", "size"])))
    b = groups(ColaBuilder(reader(world, single=["size", "color", "material"])))
    assert [g.texts for g in a] == [g.texts for g in b]
    assert re.fullmatch(r"(small|large) \w+ (metal|rubber) \w+", a[0].texts[0])


def visual_genome(world: Path, **arguments) -> VisualGenomeGraphs:
    folder = world / "visual_genome/train"
    return VisualGenomeGraphs(
        folder / "scene_graphs.json", world / "images", folder / "image_data.json", **arguments
    )


def test_visual_genome(world):
    graphs = {str(g["image_id"]): g for g in load(world / "visual_genome/train/scene_graphs.json")}
    built = groups(ColaBuilder(visual_genome(world)))
    assert len(built) == 12
    for group in built:
        assert not group.exhaustive
        objects = graphs[group.image_ids[0]]["objects"]
        objects = [{*o["attributes"], o["names"][0]} for o in objects]
        for text, true in truths(group).items():
            assert true == by_brute_force(text, objects), text
            # One spelling: attributes in alphabetical order.
            if not PAIR.fullmatch(text):
                assert text.split()[:-1] == sorted(text.split()[:-1])


def test_shards_are_valid_and_reproducible(world, tmp_path):
    spec = {
        "class_path": "data_builders.corpora.cola.ColaBuilder",
        "init_args": {
            "annotations": reader(world).spec(),
            "exclude": str(world / "compositions.json"),
            "records_per_shard": 5,
        },
    }
    for name in ("a", "b"):
        instantiate(spec, ColaBuilder).build(tmp_path / name, progress=False)
    first, second = (read_manifest(tmp_path / name) for name in ("a", "b"))
    assert first == second
    assert [s.records for s in first.shards] == [5, 5, 2]
    assert set(first.sources) == {"scenes_train.json", "compositions.json"}
    assert first.counts["queries: true"] > 20
    reader_spec = first.arguments["annotations"]
    assert reader_spec["class_path"] == "data_builders.corpora.annotations.ClevrScenes"


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), ("{", "JSONDecodeError"), ("[]", "another layout"),
     ('{"scenes": [{"image_filename": "a.png", "objects": [{"shape": "cube"}]}]}', "'color'")],
)  # fmt: skip
def test_wrong_scenes(tmp_path, content, message):
    path = tmp_path / "scenes.json"
    if content is not None:
        path.write_text(content)
    with refused(message) as caught:
        groups(ColaBuilder(ClevrScenes(path, tmp_path)))
    assert str(path) in str(caught.value)
