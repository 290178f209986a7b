from tests.data_builders.conftest import load
from tests.data_builders.worlds.scenes.truth import RELATIONS, stands


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
            shapes = [o["shape"] for o in scene["objects"]]
            assert [o["names"][0] for o in graph["objects"]] == shapes
            for o, thing in zip(graph["objects"], scene["objects"], strict=True):
                assert {thing["color"], thing["material"], thing["size"]} <= set(o["attributes"])
                assert "plain" not in o["attributes"]
                assert [o[k] for k in "xywh"] == thing["box"]
            place = {o["object_id"]: k for k, o in enumerate(graph["objects"])}
            for edge in graph["relationships"]:
                i, j = place[edge["subject_id"]], place[edge["object_id"]]
                assert stands(scene, i, RELATIONS[edge["predicate"]], j)
                predicates += 1
    assert len(ids) == 12 + 3 + 8
    assert predicates > 20


def test_regions_say_what_the_graph_says(world):
    """A phrase for each object, in its box, and one for each relation, around both objects."""
    for split in ("train", "val", "test"):
        graphs = load(world / f"visual_genome/{split}/scene_graphs.json")
        regions = load(world / f"visual_genome/{split}/region_descriptions.json")
        assert [g["image_id"] for g in graphs] == [r["id"] for r in regions]
        for graph, described in zip(graphs, regions, strict=True):
            things = graph["objects"]
            found = described["regions"]
            assert len(found) == len(things) + len(graph["relationships"])
            assert {region["image_id"] for region in found} == {graph["image_id"]}
            assert len({region["region_id"] for region in found}) == len(found)
            for region, thing in zip(found, things, strict=False):
                words = [*thing["attributes"], *thing["names"]]
                assert sorted(region["phrase"].split()) == sorted(words)
                assert box(region) == box(thing, "w", "h")
            place = {thing["object_id"]: thing for thing in things}
            for region, edge in zip(found[len(things) :], graph["relationships"], strict=True):
                two = [place[edge[f"{side}_id"]] for side in ("subject", "object")]
                phrases = region["phrase"].split(f" {edge['predicate']} ")
                for phrase, thing in zip(phrases, two, strict=True):
                    _, color, shape = phrase.split()
                    assert color in thing["attributes"]
                    assert [shape] == thing["names"]
                boxes = [box(thing, "w", "h") for thing in two]
                lefts, tops, rights, bottoms = zip(*boxes, strict=True)
                assert box(region) == (min(lefts), min(tops), max(rights), max(bottoms))


def box(row: dict, width: str = "width", height: str = "height") -> tuple[int, int, int, int]:
    """The corners of a region, or of an object by the names of its sizes."""
    return row["x"], row["y"], row["x"] + row[width], row["y"] + row[height]
