import torch
from PIL import Image

from tests.refusals import refused
from vlmtune.benchmarks import ChoiceItem, MultipleChoice
from vlmtune.benchmarks.base import check_images, files_from
from vlmtune.benchmarks.cola_multi import ColaMulti
from vlmtune.types import ImageRef


def test_missing_and_empty_files_are_counted_and_the_first_is_named(tmp_path):
    benchmark = ColaMulti("cola.json", "images", name="mine")
    paths = [tmp_path / f"{i}.png" for i in range(6)]
    for path in paths:
        Image.new("RGB", (2, 2)).save(path)
    images = [ImageRef(path, (0, 0, k, 1)) for path in paths for k in (1, 2)]
    check_images(images, benchmark)
    for path in paths[3:5]:
        path.write_bytes(b"")
    with refused() as error:
        check_images(images, benchmark)
    assert str(error.value) == (
        f"expected 6 images for mine, 2 are empty files, first '{paths[3]}': "
        f"run `{ColaMulti.source}`, or name their folder by `images`"
    )
    paths[1].unlink()
    paths[2].unlink()
    paths[2].mkdir()
    with refused(r"2 are missing.*1\.png' and 2 are empty files.*3\.png':"):
        check_images(images, benchmark)
    benchmark.source = ""
    assert files_from(benchmark) == "mend them"


def test_a_reader_may_yield_its_items(tmp_path):
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")

    class Yields(MultipleChoice):
        def read(self):
            yield ChoiceItem(ImageRef(tmp_path / "a.png"), ("a dog", "a cat"))

    benchmark = Yields()
    assert list(benchmark.items.texts) == ["a dog", "a cat"]
    assert benchmark.evaluate(torch.tensor([1.0, 0.0])).citation == ""
