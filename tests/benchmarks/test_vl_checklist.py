"""VL-CheckList's reader against the rules of the released script."""

import pytest
import torch

from tests.benchmarks.models import by_text, drawn
from tests.refusals import refused
from vlmtune.benchmarks.files import write_json
from vlmtune.benchmarks.vl_checklist import VLCheckList

FILES = {
    "Attribute/vaw/size": ("vg", 30),
    "Attribute/vg/size": ("vg", 20),
    "Attribute/vg/color": ("vg", 10),
    "Object/Location/hake_location/hake_obj_margin": ("hake", 30),
    "Object/Size/swig_size/swig_tool/swig_tool_large": ("swig", 20),
    "Relation/swig_action": ("swig", 15),
    "Relation/vg/spatial": ("vg", 25),
}


def write(folder, **options):
    for name, (corpus, count) in FILES.items():
        rows = []
        for k in range(count):
            (folder / corpus).mkdir(exist_ok=True)
            (folder / corpus / "1.jpg").write_bytes(b"0")
            texts = {"POS": [f"{name} {k}", "second"], "NEG": [f"not {name} {k}", "third"]}
            rows.append(["1.jpg", texts])
        # As in the release, where a random word may be the former one.
        rows.append(["1.jpg", {"POS": ["small bed"], "NEG": ["small bed"]}])
        write_json(folder / f"data/{name}.json", rows)
    return VLCheckList(str(folder / "data"), str(folder), **options)


@pytest.mark.parametrize("convention", ["strict", "reference"])
def test_against_the_rule_of_the_released_script(tmp_path, convention):
    look = drawn(0)
    metrics = write(tmp_path, convention=convention).run(by_text(look)).metrics
    won = {"Attribute": [], "Object": [], "Relation": [], "Attribute size": []}
    for name, (_, count) in FILES.items():
        right = [look(f"{name} {k}") > look(f"not {name} {k}") for k in range(count)]
        if convention == "reference":
            right.append(False)
        won[name.partition("/")[0]] += right
        if name.startswith("Attribute") and name.endswith("size"):
            won["Attribute size"] += right
    means = {name: sum(right) / len(right) for name, right in won.items()}
    for name, mean in means.items():
        assert metrics[f"accuracy/{name}"].value == pytest.approx(mean)
        assert metrics[f"accuracy/{name}"].chance == 0.5
    aspects = (means["Attribute"] + means["Object"] + means["Relation"]) / 3
    assert metrics["macro_accuracy"].value == pytest.approx(aspects)


def test_a_choice_of_images(tmp_path):
    made = write(tmp_path, corpora=["swig", "vg"])
    assert {image.path.parent.name for image in made.items.images} == {"swig", "vg"}
    assert (
        "accuracy/Object margin"
        not in made.run(lambda *_: torch.rand(len(made.items.pairs))).metrics
    )


def test_another_layout_is_one_line(tmp_path):
    with refused(r"expected a list of \[image, .*no file \*.json"):
        VLCheckList(str(tmp_path), str(tmp_path)).load()
    write_json(tmp_path / "Relation/vg/action.json", [["1.jpg", {"POS": []}]])
    with refused("action.json"):
        VLCheckList(str(tmp_path), str(tmp_path)).load()
