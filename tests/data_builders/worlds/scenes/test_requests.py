"""Scene requests: what is stated shows, what is left out is sampled once, mistakes are named."""

import json

import numpy as np
import pytest

from data_builders.worlds.scenes.requests import render
from data_builders.worlds.scenes.requests.files import families, read_requests
from tests.data_builders.worlds.scenes.truth import stands
from tests.refusals import refused

CUBE = {"shape": "cube", "color": "red", "material": "metal", "texture": "plain", "size": "large",
        "rotation": 30, "position": [-1.2, 0.5]}  # fmt: skip


def scene(content, **options):
    [(image, graph)] = render(content, size=32, **options)
    return np.asarray(image), graph


def test_what_is_given_is_in_the_graph():
    _, graph = scene({"floor": "sand", "background": "dusk", "objects": [CUBE, {"color": "blue"}]})
    assert (graph["floor"], graph["background"]) == ("sand", "dusk")
    cube, other = graph["objects"]
    given = ("shape", "color", "material", "texture", "size", "rotation")
    assert {name: cube[name] for name in given} == {name: CUBE[name] for name in given}
    assert other["color"] == "blue"
    # -1.2 to the right and 0.5 to the back of a camera that stands 45 degrees right of the x axis
    # and looks back along it: right is (1, 1) / sqrt(2), back is (-1, 1) / sqrt(2).
    assert cube["3d_coords"][0] == pytest.approx((-1.2 - 0.5) / 2**0.5, abs=1e-5)
    assert cube["3d_coords"][1] == pytest.approx((-1.2 + 0.5) / 2**0.5, abs=1e-5)
    assert cube["3d_coords"][2] == pytest.approx(0.75 / 2**0.5, abs=1e-5)
    # A red cube on sand: its middle is the reddest part of the picture.
    image, _ = scene({"floor": "sand", "objects": [CUBE]})
    excess = image[..., 0].astype(int) - image[..., 2]
    x, y, width, height = cube["box"]
    row, column = np.unravel_index(excess.argmax(), excess.shape)
    assert x <= column < x + width
    assert y <= row < y + height


def test_equal_seeds_give_equal_bytes_at_any_batch_and_equal_scenes_at_any_size():
    listed = [{"objects": [{}, {}]}, {}, {"objects": []}]
    first = [(image.tobytes(), graph) for image, graph in render(listed, size=32, seed=3)]
    again = [(image.tobytes(), graph) for image, graph in render(listed, size=32, seed=3)]
    other = [image.tobytes() for image, _ in render(listed, size=32, seed=4)]
    assert first == again
    assert [a != b for (a, _), b in zip(first, other, strict=True)] == [True] * 3
    assert first[0][0] == next(iter(render(listed, size=32, seed=3)))[0].tobytes()
    assert first[2][1]["objects"] == []
    small, large = (next(iter(render({}, size=size)))[1]["complete"] for size in (16, 48))
    assert small == large


def test_a_given_field_changes_no_other_and_a_complete_request_renders_the_same_picture():
    _, free = scene({"objects": [{}, {}]}, seed=5)
    _, fixed = scene({"floor": "tiles", "objects": [{"texture": "striped"}, {}]}, seed=5)
    expected = free["complete"]
    expected["floor"], expected["objects"][0]["texture"] = "tiles", "striped"
    assert fixed["complete"] == expected
    stack = {"shape": "cone", "size": "small", "relation": "on 0"}
    content = {"objects": [CUBE, stack, {"relation": "above 3"}, {"relation": "right of 0"}],
               "camera": {"azimuth": 10, "pitch": 35, "distance": 20}}  # fmt: skip
    image, graph = scene(content, seed=2)
    complete = json.loads(json.dumps(graph["complete"]))
    again, other = scene(complete, seed=77)
    assert (image == again).all()
    assert other["complete"] == graph["complete"]


@pytest.mark.parametrize(
    ("words", "name"),
    [("left of", "left"), ("right of", "right"), ("in front of", "front"), ("behind", "behind")],
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_relation_holds(words, name, seed):
    _, graph = scene({"objects": [{"relation": f"{words} 1"}, {}]}, seed=seed)
    assert stands(graph, 0, name, 1)
    a, b = (np.array(obj["3d_coords"]) for obj in graph["objects"])
    assert (a - b) @ np.array(graph["directions"][name]) >= 0.6


def test_an_object_stands_on_or_floats_above_another():
    _, graph = scene({"objects": [{"relation": "on 1"}, {}, {"relation": "above 3"}, {}]}, seed=1)
    top, base, high, low = graph["objects"]
    assert (top["on"], base["shape"] in ("cube", "cylinder")) == (1, True)
    assert high["on"] is None
    assert high["pixel_coords"][1] < low["pixel_coords"][1]
    assert np.abs(np.subtract(high["3d_coords"], low["3d_coords"])[:2]).max() < 0.1


def test_the_camera_turns_around_the_scene():
    cone = {"shape": "cone", "size": "small", "position": [1.0, 0.0]}
    columns = {
        azimuth: scene({"objects": [cone], "camera": {"azimuth": azimuth, "jitter": [0, 0, 0]}})[1]
        for azimuth in (0, 90, 180)
    }
    x = {azimuth: graph["objects"][0]["pixel_coords"][0] for azimuth, graph in columns.items()}
    assert x[0] > 20
    assert x[90] == pytest.approx(16, abs=0.01)
    assert x[180] == pytest.approx(32 - x[0], abs=0.01)


def test_a_sweep_changes_what_it_sweeps_alone():
    sweep = {"floor": ["wood", "grass"], "objects[1].color": ["red", "blue", "green"]}
    content = {"objects": [{"color": "gray"}, {"shape": "cone"}], "sweep": sweep, "count": 2}
    graphs = [graph for _, graph in render(content, size=16)]
    assert len(graphs) == 12
    for start in (0, 6):
        rows = graphs[start : start + 6]
        assert [row["sweep"]["objects[1].color"] for row in rows] == ["red", "blue", "green"] * 2
        assert [row["floor"] for row in rows] == ["wood"] * 3 + ["grass"] * 3
        for row in rows:
            assert row["complete"]["objects"][1].pop("color") == row["sweep"]["objects[1].color"]
            assert row["complete"].pop("floor") == row["sweep"]["floor"]
        assert all(row["complete"] == rows[0]["complete"] for row in rows)
    assert graphs[0]["complete"] != graphs[6]["complete"]


WRONG = {
    "unknown key": ({"ground": "wood"},
        r"^scenes\[0\]\.ground: expected one of the keys floor, .*'ground'"),
    "key of an object": ({"objects": [{}, {"colour": "red"}]},
        r"^scenes\[0\]\.objects\[1\]\.colour: expected one of the keys shape, .*got 'colour'"),
    "color": ({"objects": [{}, {"color": "rde"}]},
        r"^scenes\[0\]\.objects\[1\]\.color: expected 'gray', 'red', .*got 'rde'; change it$"),
    "relation": ({"objects": [{"relation": "left 1"}, {}]},
        r"objects\[0\]\.relation: expected one of left of, .*got 'left 1'"),
    "no such object": ({"objects": [{"relation": "on 2"}, {}]},
        r"objects\[0\]\.relation: expected another object of the scene \(1\), got 'on 2'"),
    "itself": ({"objects": [{"relation": "on 0"}]}, r"another object of the scene \(none\)"),
    "circle": ({"objects": [{"relation": "left of 1"}, {"relation": "behind 0"}]},
        r"objects\[0\]\.relation: expected relations without a circle, got 0 -> 1 -> 0"),
    "circle of three": ({"objects": [{"relation": f"behind {k}"} for k in (1, 2, 3, 1)]},
        r"without a circle, got 0 -> 1 -> 2 -> 3 -> 1"),
    "two on one": ({"objects": [{"relation": "on 2"}, {"relation": "on 2"}, {}]},
        r"objects\[1\]\.relation: expected one object on another"),
    "sphere below": ({"objects": [{"relation": "on 1"}, {"shape": "sphere"}]},
        r"objects\[0\]\.relation: expected a flat support \(cube, cylinder\), got a sphere"),
    "large on small": ({"objects": [{"relation": "on 1", "size": "large"}, {"size": "small"}]},
        r"objects\[0\]\.size: expected no larger size than that of objects\[1\], got large"),
    "standing cube": ({"objects": [{"shape": "cube", "standing": True}]},
        r"objects\[0\]\.standing: expected a torus that stands, got cube"),
    "overlap": ({"objects": [CUBE, {"position": [-1.2, 0.9]}]},
        r"objects\[1\]\.position: .* free of objects\[0\] \(red cube\), got \[-1\.2, 0\.9\]"),
    "out of view": ({"objects": [{"position": [9, 0]}]},
        r"objects\[0\]\.position: expected a position in view of the camera, got \[9, 0\]"),
    "contradiction": ({"objects": [CUBE, {"position": [1.5, 0.5], "relation": "left of 0"}]},
        r"objects\[1\]\.relation: .* view left of objects\[0\], got \[1\.5, 0\.5\]"),
    "hidden": ({"objects": [{"shape": "sphere", "size": "small", "position": [0, 2]},
                            CUBE | {"position": [0, 0.2]}],
                "camera": {"pitch": 15, "jitter": [0, 0, 0]}},
        r"objects\[0\]\.position: expected 50% or more of the \w+ sphere in sight, got \d+%"),
    "swept value": ({"objects": [{}], "sweep": {"objects[0].color": ["red", "rde"]}},
        r"scenes\[0\]\.sweep\['objects\[0\]\.color'\]: expected 'gray', .*got 'rde'"),
    "swept and given": ({"floor": "wood", "sweep": {"floor": ["sand"]}}, r"sweep: .*'floor'"),
    "swept key": ({"sweep": {"ground": ["wood"]}}, r"sweep\['ground'\]: expected one of the keys"),
    "swept over nothing": ({"sweep": {"floor": []}},
        r"^scenes\[0\]\.sweep\.floor: expected one more item, got \[\]; change it$"),
    "swept object": ({"objects": [{}], "sweep": {"objects[1].color": ["red"]}},
        r"sweep: expected the path of a field of this request, .*'objects\[1\]\.color'"),
    "a combination": ({"objects": [CUBE], "sweep": {"objects[0].color": ["red"]}},
        r"sweep: expected fields that the request does not set besides"),
    "out of view in one": ({"objects": [{"size": "small", "position": [2, 0]}],
                            "sweep": {"camera.distance": [20, 10]}},
        r"got \[2, 0\] \(with camera\.distance = 10\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_named_by_their_path(case):
    content, match = WRONG[case]
    if "relation" in str(content) or case in ("overlap", "hidden"):
        content = {"camera": {"jitter": [0, 0, 0]}, **content}
    with refused(match):
        list(render([content], size=16))


def test_requests_are_numbered_and_too_many_images_refused_before_any_is_rendered():
    with refused(r"^scenes\[2\]\.floor"):
        list(render([{}, {}, {"floor": "mud"}], size=16))
    content = {"sweep": {"light": list(range(100)), "camera.azimuth": list(range(100))}}
    assert sum(family.images for family in families([content], limit=10_000)) == 10_000
    with refused(r"scenes\[1\]: expected at most 10,000 images in all, got 10,003, 10,000 of them"):
        families([{"count": 3}, content])


def test_a_file_has_one_request_or_a_list_or_one_a_line(tmp_path):
    one, several, lines = (tmp_path / name for name in ("one.json", "list.json", "some.jsonl"))
    one.write_text('{"floor": "wood"}')
    several.write_text('[{"floor": "wood"}, {}]')
    lines.write_text('{"floor": "wood"}\n\n{}\n')
    assert read_requests(one) == [{"floor": "wood"}]
    assert read_requests(several) == read_requests(lines) == [{"floor": "wood"}, {}]
    lines.write_text('{"floor": "wood"}\n{"floor": \n')
    with refused(r"line 2 of .*some\.jsonl, got JSONDecodeError"):
        read_requests(lines)
    one.write_text('{"light": NaN}')
    with refused("NaN is not JSON"):
        read_requests(one)
    with refused("no such file"):
        read_requests(tmp_path / "none.json")
