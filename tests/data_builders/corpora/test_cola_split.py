import json
from collections import Counter
from pathlib import Path

import pytest

from data_builders.corpora.cola import ColaBuilder
from data_builders.corpora.cola_split import ColaSplitBuilder
from data_builders.corpora.paco import PacoObjects
from tests.data_builders.conftest import counts_of, dump, groups, load
from tests.data_builders.corpora.graphs import COGENT_A, clevr_scenes, every_kind, gqa, numbered
from tests.refusals import refused

IMAGES = {  # image id -> its objects, "attribute ... name"
    "1": numbered("square white plate", "brown wooden table"),
    "2": numbered("white plate", "square table"),
    "3": numbered("round white plate", "white square old plate", "brown table"),
    "4": numbered("square white plate", "square white plate"),
    "5": numbered("brown table", "round dining_table"),
}
LABELS = [
    [["square", "white"], "plate"],  # images 1, 3 and 4
    [["white"], "plate"],  # 1, 2, 3 and 4
    [["brown"], "table"],  # 1, 3 and 5
    [["wooden"], "table"],  # 1
    [["round"], "dining table"],  # 5
    [["blue"], "plate"],  # none
]


def benchmark(folder: Path, labels: list, layout: type = dict) -> Path:
    path = folder / "COLA_singleobjects_benchmark.json"
    content = {"labels": labels, "data": []}
    path.write_text(json.dumps(content if layout is dict else list(content.values())))
    return path


def built(builder: ColaSplitBuilder, out: Path) -> tuple[dict, dict, dict]:
    builder.build(out, progress=False)
    return load(out / "seen.json"), load(out / "exclude.json"), counts_of(out)


@pytest.mark.parametrize("layout", [dict, list])
@pytest.mark.parametrize(
    "spell", [lambda label: label, lambda label: " ".join([*label[0], label[1]])]
)
def test_the_least_seen_queries_and_their_images(tmp_path, layout, spell):
    """GQA's rule, with queries as pairs and as plain texts."""
    path = benchmark(tmp_path, [spell(label) for label in LABELS], layout)
    seen, exclude, counts = built(
        ColaSplitBuilder(path, gqa(tmp_path, IMAGES), unseen=4), tmp_path / "out"
    )
    assert seen == {
        "seen": ["square white plate", "white plate"],
        # 0, 1, 1 and 3 images; of the two with three, the first in the alphabet
        "unseen": ["blue plate", "brown table", "round dining table", "wooden table"],
    }
    assert exclude == {
        "unseen": [[["blue"], "plate"], [["brown"], "table"], [["round"], "dining table"],
                   [["wooden"], "table"]],
        "images": ["1", "3", "5"],
    }  # fmt: skip
    assert counts == {
        "queries: in no training image": 1,
        "queries: seen": 2,
        "queries: unseen": 4,
        "training images": 5,
        "training images with an unseen query": 3,
    }


def test_images_that_training_leaves_out_show_no_query(tmp_path):
    """Image 1 is measured, so that nothing of training shows a wooden table."""
    path = benchmark(tmp_path, LABELS)
    measured = dump(tmp_path / "measured.json", ["vg_gqa_images/1.jpg"])
    builder = ColaSplitBuilder(path, gqa(tmp_path, IMAGES), measured=[measured])
    seen, exclude, counts = built(builder, tmp_path / "out")
    assert seen["unseen"] == ["blue plate", "wooden table"]
    assert exclude["images"] == []
    assert counts["training images"] == 4
    assert counts["skipped: measured"] == 1
    assert "measured.json" in builder.sources()


def test_queries_that_training_never_shows(tmp_path):
    """PACO's rule: the attributes are never a subset of that object's, whatever others have."""
    labels = ["white_color light_blue car_(automobile)", "dark_red car_(automobile)",
              "light_blue mouse_(animal)", "light_blue mouse_(computer_equipment)"]  # fmt: skip
    names = ["car_(automobile)", "mouse_(animal)", "mouse_(computer_equipment)"]
    attributes = ["light_blue", "white_color", "dark_red"]
    objects = [(1, [1, 2]), (1, [3]), (2, [1])]  # category and attributes
    content = {
        "categories": [{"id": k, "name": n, "supercategory": "OBJECT"}
                       for k, n in enumerate(names, 1)],
        "attributes": [{"id": k, "name": n} for k, n in enumerate(attributes, 1)],
        "images": [{"id": k, "file_name": f"train2017/{k}.jpg"} for k in range(3)],
        "annotations": [{"image_id": k, "category_id": c, "attribute_ids": a}
                        for k, (c, a) in enumerate(objects)],
    }  # fmt: skip
    path = dump(tmp_path / "paco.json", content)
    builder = ColaSplitBuilder(benchmark(tmp_path, labels), PacoObjects(path, tmp_path))
    seen, exclude, counts = built(builder, tmp_path / "out")
    assert seen == {"seen": sorted(labels[:3]), "unseen": [labels[3]]}
    assert exclude["images"] == []
    assert counts["queries: in no training image"] == 1
    # An empty list, or one attribute more, is another matter.
    labels = ["car_(automobile)", "dark_red light_blue car_(automobile)"]
    builder = ColaSplitBuilder(benchmark(tmp_path, labels), PacoObjects(path, tmp_path))
    assert built(builder, tmp_path / "again")[0] == {"seen": labels[:1], "unseen": labels[1:]}


def test_cogent(tmp_path):
    """CLEVR: 96 labels; 32 unseen, 32 seen, and the spheres in neither (sections 5.1 and 9)."""
    allowed = [kind for kind in every_kind() if kind["color"] in COGENT_A[kind["shape"]]]
    scenes = [{"objects": [kind]} for kind in allowed]
    reader = clevr_scenes(tmp_path, scenes, ["size", "color", "material"])
    labels = [" ".join(kind.values()) for kind in every_kind()]
    builder = ColaSplitBuilder(benchmark(tmp_path, labels), reader, apart=["sphere"])
    seen, exclude, _ = built(builder, tmp_path / "out")
    assert len(labels) == 96
    assert {side: len(texts) for side, texts in seen.items()} == {"seen": 32, "unseen": 32}
    shapes = Counter((side, text.split()[-1]) for side, texts in seen.items() for text in texts)
    assert set(shapes.values()) == {16}
    for side, texts in seen.items():
        for _, color, _, shape in map(str.split, texts):
            assert (color in COGENT_A[shape]) == (side == "seen")
    assert exclude["images"] == []


def test_the_builder_takes_what_the_split_writes(tmp_path):
    reader = gqa(tmp_path, IMAGES)
    path = benchmark(tmp_path, LABELS[:2] + LABELS[5:])
    ColaSplitBuilder(path, reader, unseen=2).build(tmp_path / "split", progress=False)
    exclude = tmp_path / "split/exclude.json"
    assert load(exclude)["images"] == ["1", "3", "4"]
    everything = {"single": 9, "misbound": 9, "half_wrong": 3, "multi": 9, "subsets": True}
    builder = ColaBuilder(reader, exclude=exclude, **everything)
    made = {group.image_ids[0]: group for group in groups(builder)}
    assert set(made) == {"2", "5"}
    assert builder.counts["skipped: excluded"] == 3
    # Without the list of images the whole composition alone is left out.
    content = load(exclude)
    exclude.write_text(json.dumps({"unseen": content["unseen"]}))
    builder = ColaBuilder(reader, exclude=exclude, **everything)
    made = {group.image_ids[0]: group for group in groups(builder)}
    assert set(made) == set(IMAGES)
    texts = {text for group in made.values() for text in (*group.texts, *group.true_ids[0])}
    parts = {part.removeprefix("a ") for text in texts for part in text.split(" and ")}
    assert {"square plate", "white plate", "square table"} <= parts
    assert "square white plate" not in parts
    assert "blue plate" not in parts


def test_wrong_arguments(tmp_path):
    reader, path = gqa(tmp_path, IMAGES), benchmark(tmp_path, LABELS)
    with refused("expected at most 6 unseen queries, as many as"):
        ColaSplitBuilder(path, reader, unseen=7).build(tmp_path / "out", progress=False)
    rows = [["https://a.org/1.jpg", "a", "https://a.org/2.jpg", "b"]]
    # Cola's two-object file has 210 such rows.
    for content in ({}, rows, rows * 2, rows * 3, {"labels": [], "data": []}, [[3], []]):
        path.write_text(json.dumps(content))
        with refused("expected Cola's single-object benchmark"):
            ColaSplitBuilder(path, reader).build(tmp_path / "out", progress=False)
