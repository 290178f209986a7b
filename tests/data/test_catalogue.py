from collections.abc import Iterator
from dataclasses import replace

import torch
from PIL import Image
from torch import Tensor

from data_builders.shard_builder import Record, ShardBuilder, image_group
from tests.data_builders.pictures import encoded
from tests.refusals import refused
from vlmtune.data.catalogue import catalogue, decoded_images, image_digests
from vlmtune.data.images import digest
from vlmtune.data.shards import ShardSet
from vlmtune.mining.corpus import corpus
from vlmtune.types import ImageRef


def shade(image: Image.Image) -> Tensor:
    return torch.full((3, 2, 2), float(image.getpixel((0, 0))[0]))


def test_each_image_and_caption_once_and_in_order(make_set):
    data = make_set(7, 3)
    found = catalogue([data, data, make_set(2, prefix="q")])
    names = [f"r{i}-{j}" for i in range(7) for j in range(2 if i % 3 == 0 else 1)]
    names += ["q0-0", "q0-1", "q1-0"]
    assert list(found.images) == [f"image-{name}" for name in names]
    assert found.texts == sorted(f"caption {name}" for name in names)
    images = catalogue([make_set(7, 3)]).images
    batches = list(decoded_images(images, shade, 4, 0, 0.0, 10))
    assert [image for ids, _ in batches for image in ids] == list(images)
    values = [int(pixel) for _, pixels in batches for pixel in pixels[:, 0, 0, 0]]
    assert values == [0, 1, 1, 2, 3, 4, 4, 5, 6, 7]


class Listed(ShardBuilder):
    """The first record lists a caption that only the second one has."""

    def records(self) -> Iterator[Record]:
        yield image_group("a", {"one": True, "three": False}, ["two", "four"]), [encoded("PNG")]
        yield image_group("b", {"two": True}), [encoded("JPEG")]


def test_a_caption_of_another_record_is_of_the_image_that_lists_it(tmp_path):
    Listed().build(tmp_path / "shards", progress=False)
    known = corpus([ShardSet(str(tmp_path / "shards"))])
    assert known.captions == {"a": ("one", "two"), "b": ("two",)}


def test_one_image_that_cannot_be_decoded_is_left_out(make_set, caplog):
    data = make_set(4)
    images = catalogue([data]).images
    place = images["image-r1-0"]
    content = bytearray(data.files[0].read_bytes())
    content[place.offset : place.offset + 4] = b"oops"
    data.files[0].write_bytes(bytes(content))
    ((ids, pixels),) = decoded_images(images, shade, 64, 0, 0.01, 4)
    assert set(images) - set(ids) == {"image-r1-0"}
    (said,) = caplog.messages
    assert f"{data.files[0]} image-r1-0 image refused: cannot identify" in said
    assert len(pixels) == len(ids)


def test_how_many_may_be_damaged_is_a_share_of_all(make_set, damage_set):
    data = make_set(4)
    images = dict(list(catalogue([data]).images.items())[:2])
    damage_set(data, b"\x89PNG\r\n", b"notpng")
    with refused(r"1.0% damaged of 2 images"):
        list(decoded_images(images, shade, 4, 0, 0.01, 2))
    with refused(r"1.0% damaged of 100 images"):
        list(decoded_images(images, shade, 4, 0, 0.01, 100))
    assert list(decoded_images(images, shade, 4, 0, 0.01, 200)) == []


def test_images_are_told_apart_as_files_are(make_set, tmp_path):
    images = catalogue([make_set(3)]).images
    found = image_digests(images)
    assert list(found) == list(images)
    assert len(set(found.values())) == 3  # two of them are one picture
    place = images["image-r0-1"]
    (tmp_path / "image.png").write_bytes(
        place.shard.read_bytes()[place.offset : place.offset + place.size]
    )
    assert found["image-r0-1"] == digest(ImageRef(tmp_path / "image.png"))
    gone = {**images, "gone": replace(place, shard=tmp_path / "gone.tar")}
    assert image_digests(gone) == found
