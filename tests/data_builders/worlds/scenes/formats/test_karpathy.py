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
