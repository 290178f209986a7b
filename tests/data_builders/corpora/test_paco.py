from data_builders.corpora.paco import PacoObjects
from tests.data_builders.conftest import dump

CATEGORIES = [
    {"id": 207, "name": "car_(automobile)", "supercategory": "OBJECT"},
    {"id": 23, "name": "trash_can", "supercategory": "OBJECT"},
    {"id": 2000, "name": "car_(automobile):antenna", "supercategory": "PART"},
]
ATTRIBUTES = {1: "light_blue", 29: "other(color)", 50: "metal"}
OBJECTS = [(207, {"attribute_ids": [1, 29, 50]}), (2000, {"attribute_ids": [50]})]
OBJECTS += [(23, {}), (23, {"attribute_ids": [29]})]  # category and attributes, if any are stated


def test_objects_as_distributed(tmp_path):
    content = {
        "images": [{"id": k, "file_name": f"train2017/{k:012d}.jpg"} for k in (3, 4)],
        "categories": CATEGORIES,
        "attributes": [{"id": k, "name": name} for k, name in ATTRIBUTES.items()],
        "annotations": [{"image_id": 3, "category_id": c, **more} for c, more in OBJECTS],
    }
    path = dump(tmp_path / "paco.json", content)
    reader = PacoObjects(path, tmp_path)
    (tmp_path / "train2017").mkdir()
    (tmp_path / "train2017/000000000003.jpg").touch()
    (image,) = reader.images()
    assert (image.id, image.file) == ("3", tmp_path / "train2017/000000000003.jpg")
    (car,) = image.objects  # no part, and no trash can without attributes
    assert (car.name, car.single, car.multi) == ("car", ("light blue", "metal"), ("light blue",))
    assert PacoObjects(**reader.spec()["init_args"]).spec() == reader.spec()
    assert reader.exhaustive is False
