from data_builders.corpora.paco import PacoObjects
from tests.data_builders.conftest import dump


def row(id_: int, image: int, category: int, attributes: list[int] | None) -> dict:
    annotation = {"id": id_, "image_id": image, "category_id": category, "obj_ann_id": id_}
    return annotation if attributes is None else {**annotation, "attribute_ids": attributes}


def content() -> dict:
    return {
        "images": [
            {"id": 3, "file_name": "train2017/000000000003.jpg"},
            {"id": 4, "file_name": "val2017/000000000004.jpg"},
        ],
        "categories": [
            {"id": 207, "name": "car_(automobile)", "supercategory": "OBJECT"},
            {"id": 23, "name": "trash_can", "supercategory": "OBJECT"},
            {"id": 2000, "name": "car_(automobile):antenna", "supercategory": "PART"},
        ],
        "attributes": [
            {"id": 1, "name": "light_blue"},
            {"id": 29, "name": "other(color)"},
            {"id": 50, "name": "metal"},
        ],
        "annotations": [
            row(1, 3, 207, [1, 29, 50]),
            row(2, 3, 2000, [50]),
            row(3, 3, 23, None),
            row(4, 3, 23, [29]),
        ],
    }


def test_objects_as_distributed(tmp_path):
    path = dump(tmp_path / "paco.json", content())
    reader = PacoObjects(path, tmp_path)
    (tmp_path / "train2017").mkdir()
    (tmp_path / "train2017/000000000003.jpg").touch()
    (image,) = reader.images()
    assert (image.id, image.file) == ("3", tmp_path / "train2017/000000000003.jpg")
    (car,) = image.objects  # no part, and no trash can without attributes
    assert (car.name, car.single, car.multi) == ("car", ("light blue", "metal"), ("light blue",))
    assert PacoObjects(**reader.spec()["init_args"]).spec() == reader.spec()
    assert reader.exhaustive is False
