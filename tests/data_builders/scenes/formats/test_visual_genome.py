from tests.data_builders.conftest import load

WORDS = {
    "to the left of": "left",
    "to the right of": "right",
    "in front of": "front",
    "behind": "behind",
}


def test_graphs_agree_with_clevr(world, clevr):
    ids = set()
    predicates = 0
    for split in ("train", "val", "test"):
        graphs = load(world / f"visual_genome/{split}/scene_graphs.json")
        data = load(world / f"visual_genome/{split}/image_data.json")
        assert [g["image_id"] for g in graphs] == [d["image_id"] for d in data]
        for graph, image in zip(graphs, data, strict=True):
            ids.add(graph["image_id"])
            scene = clevr[image["url"].removeprefix("images/")]
            assert (image["width"], image["height"]) == (32, 32)
            assert [o["names"][0] for o in graph["objects"]] == [
                o["shape"] for o in scene["objects"]
            ]
            for o, thing in zip(graph["objects"], scene["objects"], strict=True):
                assert {thing["color"], thing["material"], thing["size"]} <= set(o["attributes"])
                assert "plain" not in o["attributes"]
                assert [o[k] for k in "xywh"] == thing["box"]
            place = {o["object_id"]: k for k, o in enumerate(graph["objects"])}
            for edge in graph["relationships"]:
                i, j = place[edge["subject_id"]], place[edge["object_id"]]
                if edge["predicate"] in WORDS:
                    predicates += 1
                    assert i in scene["relationships"][WORDS[edge["predicate"]]][j]
                else:
                    on, base = (i, j) if edge["predicate"] == "on top of" else (j, i)
                    assert scene["objects"][on]["on"] == base
    assert len(ids) == 12 + 3 + 8
    assert predicates > 20
