"""Under the convention "reference" pixels are those of `Image.open`, whatever EXIF says."""

from pathlib import Path

import pytest
import torch
from PIL import Image, ImageChops

from tests.refusals import refused
from vlmtune.benchmarks.items import as_stored
from vlmtune.benchmarks.sugar_crepe import SugarCrepe
from vlmtune.data.images import digest, read
from vlmtune.evaluation.suite import run_suite
from vlmtune.features import pictures
from vlmtune.features.pictures import Failures, PictureReader
from vlmtune.features.stored_pixels import differs, read_stored
from vlmtune.report.media import thumbnail
from vlmtune.types import ImageRef

CORNERS = {(0, 0): "red", (1, 0): "blue", (0, 1): "green", (1, 1): "yellow"}


@pytest.fixture(params=range(1, 9))
def turned_file(request, tmp_path):
    """A picture of 80 x 40 with another colour in each corner, under every orientation."""
    image = Image.new("RGB", (80, 40))
    for (x, y), colour in CORNERS.items():
        image.paste(Image.new("RGB", (40, 20), colour), (40 * x, 20 * y))
    exif = Image.Exif()
    exif[0x0112] = request.param
    image.save(tmp_path / "a.png", exif=exif)
    return tmp_path / "a.png"


def equal(one, other):
    return one.size == other.size and ImageChops.difference(one, other).getbbox() is None


@pytest.mark.parametrize("box", [None, (40, 0, 40, 40), (-5, 10, 30, 60)])
def test_pixels_are_those_of_the_file(turned_file, box):
    with Image.open(turned_file) as file:
        want = file.convert("RGB")
    if box is not None:
        x, y, width, height = box
        want = want.crop((x, y, x + width, y + height))
    ref = ImageRef(turned_file, box, upright=False)
    assert equal(read_stored(ref), want)
    shown = thumbnail(ref)
    want.thumbnail((192, 192))
    assert shown is not None
    assert equal(shown, want)


def test_the_gallery_shows_upright_images_and_digests_differ_where_pixels_do(turned_file):
    ref = ImageRef(turned_file)
    shown = thumbnail(ref)
    assert shown is not None
    assert equal(shown, read(ref))
    reader = PictureReader(lambda image: image, 4, Failures())
    upright, stored = reader.digests([ImageRef(turned_file), ImageRef(turned_file, upright=False)])
    assert (upright == stored) == (not differs(turned_file))


def test_hidden_colours_are_those_of_published_scripts(tmp_path):
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "a.png")
    upright, stored = ImageRef(tmp_path / "a.png"), ImageRef(tmp_path / "a.png", upright=False)
    assert read(upright).getpixel((0, 0)) == (255, 255, 255)
    assert read_stored(stored).getpixel((0, 0)) == (255, 0, 0)
    for ref, pixels in ((upright, read(upright)), (stored, read_stored(stored))):
        shown = thumbnail(ref)
        assert shown is not None
        assert equal(shown, pixels)
    reader = PictureReader(lambda image: image, 4, Failures())
    assert len({*reader.digests([upright, stored])}) == 2


def test_a_file_that_changes_between_its_digest_and_its_pixels_is_refused(tmp_path):
    files = [ImageRef(tmp_path / f"{name}.png") for name in "ab"]
    for ref in files:
        Image.new("RGB", (8, 8), "red").save(ref.path)
    reader = PictureReader(lambda image: torch.zeros(3, 8, 8), 4, Failures())
    names = [f"{i} {name}" for i, name in enumerate(reader.digests(files))]
    by_name = dict(zip(names, files, strict=True))
    assert [len(batch) for batch, _ in reader.batches(by_name, names)] == [2]
    Image.new("RGB", (9, 9), "blue").save(files[1].path)
    with refused("b.png to stay as it is, it changed while images were read"):
        list(reader.batches(by_name, names))
    reader.digests(files)  # whoever asks again gets the new picture
    assert [len(batch) for batch, _ in reader.batches(by_name, names)] == [2]


def test_a_box_outside_the_stored_image_is_refused_and_items_keep_all_else(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (80, 40)).save(tmp_path / "a.jpg", exif=exif)
    inside = ImageRef(tmp_path / "a.jpg", (70, 0, 10, 10), upright=False)
    assert read_stored(inside).size == (10, 10)
    with refused("80 x 40 as stored"):
        read_stored(ImageRef(tmp_path / "a.jpg", (0, 70, 10, 10), upright=False))
    (tmp_path / "a.jpg").write_text("no picture")
    with refused("expected an image in"):
        read_stored(ImageRef(tmp_path / "a.jpg", upright=False))
    ref = ImageRef(Path("a.png"), (1, 2, 3, 4))
    assert as_stored(("text", 3, (ref,))) == ("text", 3, (ImageRef(ref.path, ref.box, False),))


def test_many_pictures_are_read_part_by_part(tmp_path, monkeypatch):
    files = [ImageRef(tmp_path / f"{number}.png") for number in range(8)]
    for number, ref in enumerate(files):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(ref.path)
    monkeypatch.setattr(pictures, "READ_AHEAD", 3)
    reader = PictureReader(lambda image: image, 2, Failures())
    assert reader.digests(files) == list(map(digest, files))


@pytest.mark.parametrize("convention", ["strict", "reference"])
def test_a_benchmark_reads_what_its_convention_says(tmp_path, convention):
    benchmark = SugarCrepe.fixture(tmp_path)
    benchmark.convention = convention
    seen = []

    def score(images, texts, pairs=None):
        seen.extend(images)
        return torch.rand(len(pairs))

    (result,) = run_suite([benchmark], score).results
    assert {image.upright for image in seen} == {convention == "strict"}
    shown = {image.upright for example in result.examples for image in example.images}
    assert shown == {convention == "strict"}
