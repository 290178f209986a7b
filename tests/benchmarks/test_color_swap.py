from tests.benchmarks.models import by_name
from vlmtune.benchmarks.color_swap import ColorSwap


def test_each_caption_has_the_image_of_its_number(tmp_path):
    made = ColorSwap.fixture(tmp_path)
    # A caption scores high with the image whose number its first colour tells.
    result = made.run(by_name(lambda name, text: float(("red" in text[:6]) == ("_1" in name))))
    assert result.metrics["group_accuracy"].value == 1.0
    assert [image.path.name for image in made.items.images][:2] == ["0_1.png", "0_2.png"]
