import random

import pytest
from PIL import Image

from vlmtune.benchmarks.boxes import whole_box


def test_the_size_pil_crops():
    rng, image = random.Random(0), Image.new("RGB", (20, 20))
    for _ in range(200):
        x, y = rng.uniform(-3, 15), rng.uniform(-3, 15)
        width, height = rng.uniform(1, 9), rng.uniform(1, 9)
        crop = image.crop((x, y, x + width, y + height))
        left, top, wide, high = whole_box(x, y, width, height)
        assert (wide, high) == crop.size
        assert (left, top) == (round(x), round(y))


@pytest.mark.parametrize(
    "box",
    [
        (0, 0, 0, 5),
        (0, 0, 5, -1),
        (0, 0, 0.4, 5),
        (0, 0, "wide", 5),
        (0, 0, None, 5),
        (True, 0, 3, 5),
        (0, 0, float("inf"), 5),
        ("nan", 0, 3, 5),
    ],
)
def test_what_is_no_box_raises(box):
    with pytest.raises(ValueError, match=r"area|number|convert"):
        whole_box(*box)
