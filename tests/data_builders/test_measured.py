import json

import pytest

from data_builders.measured import measured_images
from vlmtune.errors import UserError


def test_colas_two_layouts(tmp_path):
    multi, single = tmp_path / "multi.json", tmp_path / "single.json"
    row = ["https://a.org/vg/1.jpg", "a red cup", "https://a.org/vg/2.jpg", "a cup"]
    multi.write_text(json.dumps([row]))
    single.write_text(json.dumps({"labels": ["red cup"], "data": [["images/3.JPG", [], [1]]]}))
    assert measured_images([multi, single]) == {"1", "2", "3"}
    assert measured_images([]) == frozenset()


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("{", "JSONDecodeError"), ('{"1.jpg": ["a cup", 4]}', "got none")],
)
def test_another_file_is_refused(tmp_path, content, message):
    path = tmp_path / "b.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        measured_images([path])
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
