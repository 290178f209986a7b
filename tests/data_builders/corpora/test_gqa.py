import re

from data_builders.corpora.gqa import GQAGraphs
from tests.data_builders.conftest import dump
from vlmtune.config import ROOT


def test_graphs_as_distributed(tmp_path):
    graphs = {
        "2407890": {
            "width": 640,
            "height": 480,
            "location": "living room",
            "objects": {
                "271881": {"name": "chair", "x": 1, "attributes": ["Brown", "wooden", "small"]},
                "271882": {"name": "window", "attributes": [], "relations": []},
            },
        }
    }
    path = dump(tmp_path / "train_sceneGraphs.json", graphs)
    reader = GQAGraphs(path, tmp_path / "images")
    (image,) = reader.images()
    assert (image.id, image.file) == ("2407890", tmp_path / "images/2407890.jpg")
    (chair,) = image.objects
    assert (chair.name, chair.single, chair.multi) == ("chair", ("brown", "small"), ("brown",))
    assert ("small", "wooden") in chair.readings
    (image,) = GQAGraphs(path, tmp_path / "images", single=None).images()
    assert image.objects[0].single == ("brown", "small", "wooden")
    assert len(image.objects[0].readings) == 7
    assert reader.sources() == {"train_sceneGraphs.json": path}
    assert GQAGraphs(**reader.spec()["init_args"]).spec() == reader.spec()


def test_every_command_of_cola_states_all_attributes_of_gqa_and_paco() -> None:
    # The paper names no maximum (Cola, section 9), and the readers' default is two.
    commands = []
    for config in (ROOT / "configs/experiments").rglob("*.yaml"):
        for line in config.read_text().splitlines():
            if "vlmtune build cola " in line and re.search("GQAGraphs|PacoObjects", line):
                commands.append(line)
    assert len(commands) >= 8
    assert [line for line in commands if "--annotations.single null" not in line] == []
