import base64
from io import BytesIO

import pytest
from PIL import Image

from vlmtune.report.media import SIDE, data_uri, retrievals, strip
from vlmtune.types import ImageRef


def test_a_strip_shows_the_readable_images(make_run, tmp_path):
    example = make_run().results[0].examples[0]
    picture = strip(example.images)
    assert picture.size == (192 + 100, 128)  # as high as the highest
    assert picture.getpixel((5, 5))[0] > 200  # red comes first
    assert picture.getpixel((195, 5))[2] > 200
    (tmp_path / "0.png").unlink()
    assert strip(example.images).size == (100, 100)
    (tmp_path / "1.png").unlink()
    assert strip(example.images) is None


def test_retrievals_need_a_readable_image(make_run, tmp_path):
    result = make_run().results[0]
    pictures, texts = retrievals(result)
    assert texts[0] == "right: red cup <on> blue box (1.5 true, 0.5 false)"
    assert texts[1].startswith("wrong: ")
    assert [picture.size for picture in pictures] == [strip(e.images).size for e in result.examples]
    for image in tmp_path.glob("*.png"):
        image.unlink()
    assert retrievals(result) == ([], [])


def opened(uri):
    return Image.open(BytesIO(base64.b64decode(uri.partition(",")[2])))


@pytest.fixture
def path(tmp_path):
    image = Image.new("RGB", (600, 300), "red")
    image.paste("blue", (300, 0, 600, 300))
    image.save(tmp_path / "a.png")
    return tmp_path / "a.png"


def test_pictures_are_shrunk_and_cropped_or_have_no_uri(path, tmp_path):
    assert opened(data_uri(ImageRef(path))).size == (SIDE, SIDE // 2)
    image = opened(data_uri(ImageRef(path, (500, 0, 200, 200))))
    assert image.size == (SIDE, SIDE)
    assert image.getpixel((20, 90))[2] > 200
    assert max(image.getpixel((SIDE - 10, 90))) < 20
    (tmp_path / "b.png").write_bytes(path.read_bytes()[:100])
    assert data_uri(ImageRef(tmp_path / "b.png")) is None
    assert data_uri(ImageRef(tmp_path / "absent.png")) is None
    for box in ((0, 0, 0, 5), (0, 0, 10**6, 10**6)):
        assert data_uri(ImageRef(path, box)) is None
