import random

from data_builders.worlds.scenes.formats import karpathy
from data_builders.worlds.scenes.image_files import SceneImage
from data_builders.worlds.scenes.sampling import WorldSpec, sample_scene
from tests.data_builders.conftest import NOTHING, SMALL, load, rendered


def test_five_captions_of_what_is_there(world, clevr):
    images = load(world / "karpathy/dataset_scenes.json")["images"]
    assert {i["split"] for i in images} == {"train", "val", "test"}
    assert [i["imgid"] for i in images] == list(range(len(clevr)))
    sentids = [s for i in images for s in i["sentids"]]
    assert sentids == list(range(5 * len(clevr)))
    for image in images:
        scene = clevr[f"{image['filepath']}/{image['filename']}"]
        pairs = {(o["color"], o["shape"]) for o in scene["objects"]}
        colors = {c for c, _ in pairs}
        assert len({s["raw"] for s in image["sentences"]}) == 5
        for sentence in image["sentences"]:
            words = sentence["raw"].split()
            assert sentence["tokens"] == words
            # A colour is followed by the shape it belongs to, a material at most between.
            for k, word in enumerate(words):
                if word in colors:
                    shape = next(w for w in words[k + 1 :] if w not in ("metal", "rubber"))
                    assert (word, shape) in pairs
            if words[0] == "there":
                number = ["one", "two", "three", "four"].index(words[2]) + 1
                assert number == len(scene["objects"])


def test_captions_of_sides_have_ids_of_their_own(tmp_path):
    world = rendered(tmp_path / "world", SMALL | NOTHING, train=3, placements=4)
    images = load(world / "karpathy/dataset_scenes.json")["images"]
    sentids = [sentid for image in images for sentid in image["sentids"]]
    assert len(set(sentids)) == len(sentids) > 5 * len(images)


def test_training_captions_leave_out_what_is_true_of_all_objects():
    spec = WorldSpec(2, 3, textures=("plain",), sizes=("large",))
    scenes = [sample_scene(spec, random.Random(seed)) for seed in range(20)]
    images = [SceneImage(f"a/{k}.png", k, scene, 32, (), ()) for k, scene in enumerate(scenes)]
    splits = {"train": images, "test": images}
    stated = karpathy.dataset(splits, 0, placements=2)["images"]
    left = karpathy.dataset(splits, 0, placements=2, constant={"large"})["images"]
    assert left[20:] == stated[20:]  # benchmarks
    for before, after in zip(stated[:20], left[:20], strict=True):
        raws = [sentence["raw"].replace("large ", "") for sentence in before["sentences"]]
        assert [sentence["raw"] for sentence in after["sentences"]] == list(dict.fromkeys(raws))
    # Some captions stated nothing else.
    assert sum(len(row["sentences"]) for row in left) < sum(len(r["sentences"]) for r in stated)
