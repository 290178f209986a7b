"""Samples of a loop, written as tars."""

import json

import pytest
from PIL import Image

from tests.refusals import refused
from vlmtune.data.samples import write_samples
from vlmtune.data.shards import read_headers

PICTURE = Image.new("CMYK", (9, 9))  # which no PNG holds


def test_decoded_and_encoded_samples_are_read_back(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    encoded = (tmp_path / "a.png").read_bytes()
    samples = [
        {"__key__": "x", "image": PICTURE, "caption": "un café", "negatives": ["un thé", "rien"]},
        {"__key__": "y", "png": encoded, "txt": "un café\nle soir".encode()},
        {"__key__": "y", "jpg": PICTURE, "txt": "left", "json": {"captions": ["a dog"]}},
        {"png": encoded, "json": json.dumps({"caption": "a cat", "foil": "a cow"}).encode()},
    ]
    written = write_samples(iter(samples), tmp_path / "mine", per_tar=3)
    texts = [group.texts for _, group, _ in read_headers([written])]
    first, second = ("un café", "un thé", "rien"), ("un café", "le soir")
    assert texts == [first, second, ("a dog",), ("a cat", "a cow")]
    assert len(list((tmp_path / "mine").glob("*.tar"))) == 2
    with refused("expected a new folder"):
        write_samples(samples, tmp_path / "mine")


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"__key__": "k", "caption": "a dog"}, r"an image in sample 0 \(k\), got __key__, caption"),
        ({"image": PICTURE, "txt": " "}, "a caption in sample 0"),
        ({"image": PICTURE, "txt": b"\xff"}, "captions in UTF-8.* in sample 0"),
        ({"image": PICTURE, "json": b"[1"}, "an object as json in sample 0"),
    ],
)
def test_incomplete_samples_leave_no_folder(sample, message, tmp_path):
    with refused(message):
        write_samples([sample], tmp_path / "mine")
    with refused("expected samples to write"):
        write_samples([], tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []
