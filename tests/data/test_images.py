import random
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from tests.refusals import refused
from tests.tiny import encoded
from vlmtune.data import images
from vlmtune.data.images import digest, open_image, read
from vlmtune.data.schema import RecordError
from vlmtune.features.pictures import read_picture
from vlmtune.types import ImageRef


def two_pixels() -> Image.Image:
    image = Image.new("RGB", (2, 1), "red")
    image.putpixel((1, 0), (0, 0, 255))
    return image


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header claims width x height, with next to no data behind it."""

    def chunk(name: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


KINDS = ["PNG RGB", "PNG L", "PNG P", "PNG RGBA", "PNG 1", "JPEG RGB", "JPEG L", "JPEG CMYK"]
KINDS += ["WEBP RGB", "WEBP RGBA", "GIF P", "GIF L", "TIFF RGB", "TIFF CMYK"]
KINDS += ["AVIF RGB", "AVIF RGBA", "JPEG2000 RGB", "JPEG2000 L"]


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_image_becomes_rgb(name):
    kind, mode = name.split()
    opened = open_image(encoded(Image.new("RGB", (3, 2), "white").convert(mode), kind))
    assert (opened.mode, opened.size) == ("RGB", (3, 2))
    assert min(opened.getpixel((1, 1))) > 250


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG2000", "PPM"])
def test_grey_of_16_bits_is_scaled(kind):
    wide = Image.fromarray(np.array([[0, 257 * 30, 40_000, 65_535]], dtype=np.uint16))
    source = encoded(wide, kind, **({"irreversible": False} if kind == "JPEG2000" else {}))
    opened = open_image(source)
    assert [opened.getpixel((x, 0))[0] for x in range(4)] == [0, 30, 156, 255]
    assert open_image(source, plain=True).getpixel((2, 0)) == (255, 255, 255)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pixels_without_a_range_are_refused(mode, tmp_path):
    Image.new(mode, (2, 2), 1).save(tmp_path / "a.tif")
    with refused(f"got none .pixels of mode '{mode}', whose range is unknown.: save it with 8 or"):
        open_image(tmp_path / "a.tif")
    with refused(f"expected a picture of 8 or 16 bits, got pixels of mode '{mode}'"):
        read_picture(Image.new(mode, (2, 2)))


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF", "TIFF"])
def test_transparent_pixels_are_white(kind):
    image = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    image.putpixel((1, 0), (0, 0, 255, 255))
    opened = open_image(encoded(image, kind))
    assert opened.getpixel((0, 0)) == (255, 255, 255)
    assert opened.getpixel((1, 0))[2] > 200
    assert read_picture(image).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (encoded(Image.new("RGB", (2, 2)), "SGI"), "cannot identify image file"),
        (b"\0\0\0\x18ftypheic" + bytes(16), "format HEIF is not read without .*pillow-heif"),
    ],
)
def test_a_format_that_is_not_read_is_named(source, message, tmp_path):
    (tmp_path / "a.png").write_bytes(source)
    with refused(message):
        open_image(tmp_path / "a.png")


def test_exif_orientation_is_applied_before_the_box_if_it_can_be_read():
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show rotated by 90 degrees clockwise
    upright = open_image(encoded(two_pixels(), exif=exif))
    assert upright.size == (1, 2)
    assert [upright.getpixel((0, y)) for y in (0, 1)] == [(255, 0, 0), (0, 0, 255)]
    image = open_image(encoded(two_pixels(), exif=exif), box=(0, 1, 1, 1))
    assert image.getpixel((0, 0)) == (0, 0, 255)
    assert open_image(encoded(two_pixels(), exif=b"Exif\0\0II*\0garbage")).size == (2, 1)


def test_a_box_reaches_outside_into_black():
    cut = open_image(encoded(two_pixels()), box=(-1, 0, 3, 2))
    assert cut.size == (3, 2)
    assert [cut.getpixel((x, 0)) for x in range(3)] == [(0, 0, 0), (255, 0, 0), (0, 0, 255)]
    assert cut.getpixel((1, 1)) == (0, 0, 0)


@pytest.mark.parametrize("box", [(2, 0, 1, 1), (-1, 0, 1, 1), (0, 0, 0, 1), (0, 0, 10**5, 10**5)])
def test_a_box_without_image_is_refused(box):
    with pytest.raises(RecordError, match="image refused"):
        open_image(encoded(two_pixels()), box=box)


@pytest.mark.parametrize("side", [9000, 14000, 100_000])
def test_a_bomb_is_refused_by_its_header(side):
    # 9000² exceeds our limit, 14000² Pillow's warning and 100000² Pillow's error.
    with pytest.raises(RecordError, match="pixels"):
        open_image(bomb(side, side))


def test_the_limit_is_inclusive(monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", 2)
    assert open_image(encoded(two_pixels())).size == (2, 1)
    monkeypatch.setattr(images, "MAX_PIXELS", 1)
    with pytest.raises(RecordError, match="2 x 1 pixels"):
        open_image(encoded(two_pixels()))


@pytest.mark.parametrize("source", [b"", b"not an image", b"%!PS-Adobe-3.0 EPSF-3.0\n"])
def test_no_image_is_one_line(source, tmp_path):
    with pytest.raises(RecordError) as record:
        open_image(source)
    path = tmp_path / "x.png"
    path.write_bytes(source)
    with refused() as user:
        open_image(path)
    assert str(path) in str(user.value)
    for message in (str(record.value), str(user.value)):
        assert "\n" not in message
        assert "0x" not in message  # an address would make the line differ from run to run


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_truncated_image_is_refused(kind):
    image = Image.frombytes("RGB", (64, 64), random.Random(0).randbytes(64 * 64 * 3))
    source = encoded(image, kind)
    for length in range(0, len(source) - 64, 331):
        with pytest.raises(RecordError):
            open_image(source[:length])


def test_what_is_missing_or_a_box_outside_is_told_from_a_bad_file(tmp_path):
    with refused("it is missing"):
        read(ImageRef(tmp_path / "none.png"))
    with refused("it is not a file"):
        read(ImageRef(tmp_path))
    with refused("name a file that exists"):
        digest(ImageRef(tmp_path / "none.png"))
    path = tmp_path / "a.png"
    path.write_bytes(encoded(two_pixels()))
    with refused("does not touch the 2 x 1 image.*: change the box, or use convention: reference"):
        read(ImageRef(path, (2, 0, 1, 1)))
    path.write_text("no image")
    with refused(": replace the file"):
        read(ImageRef(path))


def test_digest_depends_on_content_and_box_only(tmp_path):
    a, b, c = tmp_path / "a.png", tmp_path / "b.png", tmp_path / "c.png"
    a.write_bytes(encoded(two_pixels()))
    b.write_bytes(a.read_bytes())
    c.write_bytes(encoded(Image.new("RGB", (2, 1))))
    assert digest(ImageRef(a)) == digest(ImageRef(b))
    refs = [ImageRef(a), ImageRef(c), ImageRef(a, (0, 0, 1, 1)), ImageRef(a, (0, 0, 1, 2))]
    assert len({digest(ref) for ref in refs}) == len(refs)
    assert read(ImageRef(a, (1, 0, 1, 1))).getpixel((0, 0)) == (0, 0, 255)


def test_a_frame_of_bytes_is_read_blue_first(monkeypatch, tmp_path):
    path = tmp_path / "frame.npy"
    np.save(path, np.array([[[0, 0, 255], [255, 0, 0]]], dtype=np.uint8))
    opened = read(ImageRef(path))
    assert (opened.mode, opened.size) == ("RGB", (2, 1))
    assert [opened.getpixel((x, 0)) for x in (0, 1)] == [(255, 0, 0), (0, 0, 255)]
    assert read(ImageRef(path, (1, 0, 1, 1))).getpixel((0, 0)) == (0, 0, 255)
    monkeypatch.setattr(images, "MAX_PIXELS", 1)
    with refused("2 x 1 pixels"):
        open_image(path)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 2, 3), dtype=np.float32), "an array of float32"),
        (np.zeros((2, 2), dtype=np.uint8), r"\(2, 2\)"),
        (np.zeros((2, 2, 4), dtype=np.uint8), r"\(2, 2, 4\)"),
        (np.zeros((0, 2, 3), dtype=np.uint8), "got none"),
        (np.array([[[{}] * 3]], dtype=object), "objects"),
    ],
)
def test_an_array_that_is_no_frame_is_refused(tmp_path, array, message):
    path = tmp_path / "frame.npy"
    np.save(path, array, allow_pickle=True)
    with refused(message):
        open_image(path)
