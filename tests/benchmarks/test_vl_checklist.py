import shutil

import pytest
import torch

from tests.benchmarks.json_files import touch
from tests.benchmarks.models import by_text, check, drawn, mean, share
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
        touch(folder, f"{corpus}/1.jpg")
        rows = []
        for k in range(count):
            texts = {"POS": [f"{name} {k}", "second"], "NEG": [f"not {name} {k}", "third"]}
            rows.append(["1.jpg", texts])
        # As in the release, where a random word may be the former one.
        rows.append(["1.jpg", {"POS": ["small bed"], "NEG": ["small bed"]}])
        write_json(folder / f"data/{name}.json", rows)
    return VLCheckList(str(folder / "data"), str(folder), **options)


@pytest.mark.parametrize("convention", ["strict", "reference"])
def test_against_the_rule_of_the_released_script(tmp_path, convention):
    look = drawn(0)
    result = write(tmp_path, convention=convention).run(by_text(look))
    won = {"Attribute": [], "Object": [], "Relation": [], "Attribute size": []}
    chances = {name: [] for name in won}
    for name, (_, count) in FILES.items():
        right = [look(f"{name} {k}") > look(f"not {name} {k}") for k in range(count)]
        chance = [0.5] * count
        if convention == "reference":
            right.append(False)
            chance.append(0.0)
        kinds = [name.partition("/")[0]]
        if name.startswith("Attribute") and name.endswith("size"):
            kinds.append("Attribute size")
        for kind in kinds:
            won[kind] += right
            chances[kind] += chance
    expected = {
        f"accuracy/{name}": share(right, mean(chances[name])) for name, right in won.items()
    }
    check(result, expected)
    aspects = [mean(won[name]) for name in ("Attribute", "Object", "Relation")]
    check(result, {"macro_accuracy": (mean(aspects), 3)})


def test_a_choice_of_images(tmp_path):
    made = write(tmp_path, corpora=["swig", "vg"])
    assert {image.path.parent.name for image in made.items.images} == {"swig", "vg"}
    result = made.run(lambda *_: torch.rand(len(made.items.pairs)))
    assert "accuracy/Object margin" not in result.metrics


def test_an_aspect_without_files_is_one_line(tmp_path):
    made = write(tmp_path)
    shutil.rmtree(tmp_path / "data/Object")
    with refused(r"expected a list of \[image, .*no file \*.json"):
        made.load()
