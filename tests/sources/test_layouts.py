"""Every source that comes with vlmtune, against a mirror with files of its layout.

Sizes and checksums are those of the published content only and are left out here. Images one by one
are in test_journey and test_download.
"""

import io
import json
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from tests.sources.conftest import SOON, picture, publish, redeclare, tarred, zipped
from vlmtune.benchmarks.color_swap import ColorSwap
from vlmtune.sources import downloads
from vlmtune.sources.addresses import HAND, file_name
from vlmtune.sources.ledger import Ledger
from vlmtune.sources.order import Order, default_reader, orders
from vlmtune.sources.source import sources
from vlmtune.sources.state import state

WITH_FILES = sorted(name for name, source in sources().items() if source.files)
CAPTIONS = [{"image": "val2014/a.jpg", "caption": ["a red cat sits on a mat"]}]


def encoded(colour):
    file = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(file, "PNG")
    return file.getvalue()


def parquet(rows):
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


def table():
    """Two images of CIFAR-10 as the hub has them."""
    images = {
        3: {"bytes": encoded("red"), "path": None},
        9: {"bytes": encoded("blue"), "path": None},
    }
    return parquet([{"img": image, "label": label} for label, image in images.items()])


def half_truths():
    """Two comparisons, each with its image, as the hub has them."""
    texts = {"anchor": "a man", "half_truth": "a man and a cow", "full_truth": "a man on a mat"}
    image = {"bytes": encoded("red"), "path": None}
    kinds = ("entity", "relation")
    return parquet([{"id": k, "triplet_type": k, "image": image, **texts} for k in kinds])


def color_swap():
    """An archive within an archive."""
    made = Path("made")
    ColorSwap.fixture(made)
    images = {str(path.relative_to(made)): path.read_bytes() for path in made.rglob("*.png")}
    text = next(made.glob("*.json")).read_text()
    rows = re.sub(r'"(\d_\d.png)"', r'"images/\1"', text)
    return zipped({"data/test.json": rows, "data/images.zip": zipped(images)})


SPECIAL = {
    "cifar10": table,
    "coco_order": lambda: json.dumps(CAPTIONS).encode(),
    "color_swap": color_swap,
    "half_truths": half_truths,
}


def archive_of(file):
    """An archive with one member that the source takes."""
    # A set of letters stands for one of them, or for one that is not among them.
    name = re.sub(r"\[!?.*?\]", lambda found: "x" if "!" in found[0] else found[0][1], file.members)
    name = name.replace("*", "x")
    while name.count("/") < file.strip:
        name = f"x/{name}"
    pack = zipped if file.unpack == "zip" else tarred
    return pack({name: "content"})


@pytest.mark.parametrize("name", WITH_FILES)
def test_a_source_comes_whole(mirror, name):
    redeclare(name, images=[])
    source = sources()[name]
    given = Path("given")
    given.mkdir()
    for file in source.files:
        content = b"content"
        if name in SPECIAL:
            content = SPECIAL[name]()
        elif file.unpack is not None:
            content = archive_of(file)
        if file.urls[0].startswith(HAND):
            (given / file_name(file.urls[0])).write_bytes(content)
        else:
            # The last address: those before it fail.
            publish(mirror, file.urls[-1], content)
    downloads.download(orders([name]), accepted=[name], given=given, patience=SOON)
    assert state(Order(name, source), Ledger(Path("data"))) == "whole"


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("cifar10", "zero_shot_classification"),
        ("color_swap", "color_swap"),
        ("half_truths", "half_truths"),
    ],
)
def test_a_reader_takes_what_a_conversion_made(mirror, name, reader):
    redeclare(name)
    for file in sources()[name].files:
        publish(mirror, file.urls[-1], SPECIAL[name]())
    downloads.download(orders([name]), patience=SOON)
    default_reader(reader).load()


def test_the_order_benchmark_reads_its_shuffles(mirror):
    redeclare("coco_order")
    (file,) = sources()["coco_order"].files
    publish(mirror, file.urls[0], SPECIAL["coco_order"]())
    (images,) = sources()["coco_order"].images
    publish(mirror, images.addresses(Path("a.jpg"))[0], picture(Path("made.jpg")))
    downloads.download(orders(["aro_order"]), patience=SOON)
    default_reader("aro_order").load()
