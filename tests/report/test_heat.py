from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.report.conftest import changed
from vlmtune.report import RunReport, to_html
from vlmtune.report.heat import DARK, heat, heat_views
from vlmtune.results.result import WordMaps
from vlmtune.types import ImageRef


def hottest(picture):
    """x and y of the brightest pixel, as fractions."""
    pixels = np.asarray(picture, dtype=float).sum(axis=2)
    y, x = np.unravel_index(pixels.argmax(), pixels.shape)
    return (x + 0.5) / picture.width, (y + 0.5) / picture.height


@pytest.mark.parametrize("row", range(3))
@pytest.mark.parametrize("column", range(3))
def test_heat_is_where_the_weight_is(row, column):
    weights = np.zeros((3, 3))
    weights[row, column] = 0.7
    x, y = hottest(heat(Image.new("RGB", (90, 60), "blue"), weights))
    assert (int(3 * x), int(3 * y)) == (column, row)


def test_one_scale_for_several_pictures_and_patches_of_the_middle():
    """Of a picture twice as wide as high the model saw the middle square."""
    picture = Image.new("RGB", (200, 100), (100, 100, 100))
    shown = heat(picture, [[1.0, 0.0], [0.0, 0.0]], (0.25, 0.0, 0.5, 1.0))
    assert hottest(shown)[0] == pytest.approx(0.25, abs=0.06)
    dark = (round(100 * DARK),) * 3
    assert shown.getpixel((10, 10)) == shown.getpixel((190, 10)) == dark  # not seen
    # A quarter of the largest weight is half as warm.
    picture = Image.new("RGB", (8, 8))
    full, half = (np.asarray(heat(picture, [[x]], largest=0.8))[4, 4, 0] for x in (0.8, 0.2))
    assert half == pytest.approx(full / 2, abs=1)
    assert heat(picture, [[0.0]]).getpixel((4, 4)) == (0, 0, 0)


@pytest.fixture
def reading(tmp_path):
    Image.new("RGB", (40, 40), "red").save(tmp_path / "a.png")
    maps = ("100.00 0.00 0.00 0.00", "25.00 25.00 25.00 25.00")
    words = ("a", "<b>cube")
    box = (0.0, 0.0, 1.0, 1.0)
    return WordMaps("a <b>cube", ImageRef(tmp_path / "a.png"), words, maps, 2, box, True)


def test_readings_are_on_the_page_and_in_the_file_unless_the_image_is_gone(
    make_run, reading, tmp_path
):
    run = make_run("mm", curves={})
    first = changed(run, readings=(reading,))
    run = replace(run, results=first.results + run.results[1:])
    page = to_html([run])
    assert "What each word reads, by mm" in page
    assert page.count('<figure><img src="data:image/jpeg;base64,') == 3  # the image and two words
    assert "<figcaption>&lt;b&gt;cube</figcaption>" in page
    assert "What each word reads, by mm" in to_html([changed(first, examples=())])
    assert "What each word reads" not in to_html([make_run("mm")])
    run.save(tmp_path / "report.json")
    assert RunReport.load(tmp_path / "report.json") == run
    (view,) = heat_views([reading])
    assert [word["word"] for word in view["words"]] == ["a", "<b>cube"]
    reading.image.path.unlink()
    assert heat_views([reading]) == []
