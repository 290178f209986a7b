import json

import pytest
from PIL import Image

from tests.benchmarks.models import by_name, drawn
from vlmtune.benchmarks.color_swap import ColorSwap


@pytest.mark.parametrize("seed", range(3))
def test_against_a_loop(tmp_path, seed):
    rows = []
    for i in range(25):
        row = {"id": i, "image_source": "x", "caption_source": "y"}
        for side in (1, 2):
            row |= {f"image_{side}": f"{i}_{side}.png", f"caption_{side}": f"caption {i} {side}"}
            Image.new("RGB", (4, 4)).save(tmp_path / f"{i}_{side}.png")
        rows.append(row)
    (tmp_path / "test.json").write_text(json.dumps(rows))
    look = drawn(seed, values=3)
    metrics = ColorSwap(str(tmp_path / "test.json"), str(tmp_path)).run(by_name(look)).metrics
    text, image = [], []
    for row in rows:
        s = [[look(row[f"image_{i}"], row[f"caption_{j}"]) for j in (1, 2)] for i in (1, 2)]
        text.append(s[0][0] > s[0][1] and s[1][1] > s[1][0])
        image.append(s[0][0] > s[1][0] and s[1][1] > s[0][1])
    group = [a and b for a, b in zip(text, image, strict=True)]
    for key, wins in (("text", text), ("image", image), ("group", group)):
        assert metrics[f"{key}_accuracy"].value == pytest.approx(sum(wins) / len(rows))
