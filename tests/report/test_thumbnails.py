import base64
from io import BytesIO

import pytest
from PIL import Image

from vlmtune.report.thumbnails import SIDE, data_uri
from vlmtune.types import ImageRef


def opened(uri):
    return Image.open(BytesIO(base64.b64decode(uri.partition(",")[2])))


@pytest.fixture
def path(tmp_path):
    image = Image.new("RGB", (600, 300), "red")
    image.paste("blue", (300, 0, 600, 300))
    image.save(tmp_path / "a.png")
    return tmp_path / "a.png"


def test_shrunk_in_proportion(path):
    assert opened(data_uri(ImageRef(path))).size == (SIDE, SIDE // 2)


def test_cropped_with_black_outside(path):
    image = opened(data_uri(ImageRef(path, (500, 0, 200, 200))))
    assert image.size == (SIDE, SIDE)
    assert image.getpixel((20, 90))[2] > 200
    assert max(image.getpixel((SIDE - 10, 90))) < 20


def test_what_cannot_be_shown_is_none(tmp_path, path):
    (tmp_path / "b.png").write_bytes(path.read_bytes()[:100])
    assert data_uri(ImageRef(tmp_path / "b.png")) is None
    assert data_uri(ImageRef(tmp_path / "absent.png")) is None
    assert data_uri(ImageRef(path, (0, 0, 0, 5))) is None
