import random

from data_builders.worlds.scenes.captions import BACKGROUND_PHRASES, FLOOR_PHRASES
from data_builders.worlds.scenes.formats import karpathy
from data_builders.worlds.scenes.image_files import SceneImage
from data_builders.worlds.scenes.sampling import WorldSpec, sample_scene
from tests.data_builders.conftest import NOTHING, SMALL, load, rendered
from tests.data_builders.worlds.scenes.truth import holds

# Of sentences that end so, the tests' reader knows some only.
PLACES = (*FLOOR_PHRASES.values(), *BACKGROUND_PHRASES.values())


def test_five_captions_of_what_is_there(world, clevr):
    images = load(world / "karpathy/dataset_scenes.json")["images"]
    assert {i["split"] for i in images} == {"train", "val", "test"}
    assert [i["imgid"] for i in images] == list(range(len(clevr)))
    sentids = [s for i in images for s in i["sentids"]]
    assert sentids == list(range(5 * len(clevr)))
    read = 0
    for image in images:
        scene = clevr[f"{image['filepath']}/{image['filename']}"]
        assert len({s["raw"] for s in image["sentences"]}) == 5
        for sentence in image["sentences"]:
            assert sentence["tokens"] == sentence["raw"].split()
            if not sentence["raw"].endswith(PLACES):
                assert holds(scene, sentence["raw"]), sentence["raw"]
                read += 1
    assert read > 3 * len(clevr)


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
