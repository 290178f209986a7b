from data_builders.corpora.gqa import GQAGraphs
from tests.data_builders.conftest import dump


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
