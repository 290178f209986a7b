"""Every source that comes with vlmtune, against a mirror with files of its layout.

Sizes and checksums are those of the published content only and are left out here. Images one by one
are in test_journey and test_download.
"""

import io
import json
import re
import shutil
from fnmatch import fnmatchcase
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import yaml
from PIL import Image

from tests.sources.conftest import SOON, picture, publish, redeclare, tarred, zipped
from tests.tiny import encoded
from vlmtune.benchmarks.color_swap import ColorSwap
from vlmtune.config import ROOT
from vlmtune.sources import downloads
from vlmtune.sources.addresses import HAND, file_name
from vlmtune.sources.ledger import Ledger
from vlmtune.sources.order import Order, default_reader, orders
from vlmtune.sources.source import sources
from vlmtune.sources.state import state

WITH_FILES = sorted(name for name, source in sources().items() if source.files)
RED = encoded(Image.new("RGB", (8, 8), "red"))
CAPTIONS = [{"image": "val2014/a.jpg", "caption": ["a red cat sits on a mat"]}]


def parquet(rows):
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


def table():
    """Two images of CIFAR-10 as the hub has them."""
    images = {
        3: {"bytes": RED, "path": None},
        9: {"bytes": encoded(Image.new("RGB", (8, 8), "blue")), "path": None},
    }
    return parquet([{"img": image, "label": label} for label, image in images.items()])


def half_truths():
    """Two comparisons, each with its image, as the hub has them."""
    texts = {"anchor": "a man", "half_truth": "a man and a cow", "full_truth": "a man on a mat"}
    image = {"bytes": RED, "path": None}
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


def member_of(file):
    """The name of one member that the source takes."""
    # A set of letters stands for one of them, or for one that is not among them.
    name = re.sub(r"\[!?.*?\]", lambda found: "x" if "!" in found[0] else found[0][1], file.members)
    name = name.replace("*", "x")
    while name.count("/") < file.strip:
        name = f"x/{name}"
    return name


def archive_of(file, members=None):
    """An archive with these members, or with one that the source takes."""
    pack = zipped if file.unpack == "zip" else tarred
    return pack(members or {member_of(file): b"content"})


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
        ("coco_order", "aro_order"),  # reads its shuffles
    ],
)
def test_a_reader_takes_what_a_conversion_made(mirror, name, reader):
    redeclare(name)
    for file in sources()[name].files:
        publish(mirror, file.urls[-1], SPECIAL[name]())
    for images in sources()[name].images:
        publish(mirror, images.addresses(Path("a.jpg"))[0], picture(Path("made.jpg")))
    downloads.download(orders([reader]), patience=SOON)
    default_reader(reader).load()
    for image in sorted(Path("data").rglob("*.png"))[:1]:  # what a person cleans up is made again
        image.unlink()
        downloads.download(orders([reader]), patience=SOON)
        assert image.is_file()


# -- readers over what came -------------------------------------------------------------------

LAID = Path("laid")  # the data folder as a download should make it
BY_HAND = {"geb_plus"}  # a person cuts its frames out of videos
READERS = []
for _name in WITH_FILES:
    if not sources()[_name].convert and _name not in BY_HAND:
        READERS += [(_name, reader) for reader in sources()[_name].serves.benchmarks]


def lay_out(made, usual):
    """Copies what a fixture made to its place in the YAML of the benchmark, which is returned."""
    if isinstance(usual, dict):
        return {key: lay_out(made, path) for key, path in usual.items()}
    if isinstance(made, list):
        (made,) = made
    if isinstance(usual, list):
        return [lay_out(made, path) for path in usual]
    place = LAID / Path(usual).relative_to("data")
    if Path(made).is_dir():
        shutil.copytree(made, place, dirs_exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, place)
    return usual


def members_of(file):
    """The members of an archive that unpacks to what is laid out."""
    prefix = member_of(file).split("/")[: file.strip]
    members = {}
    for path in sorted((LAID / file.path).rglob("*.*")):
        name = "/".join([*prefix, *path.relative_to(LAID / file.path).parts])
        if fnmatchcase(name, file.members):
            members[name] = path.read_bytes()
    return members


def serve(server, file):
    """Publishes a file of a source as it is laid out; one that no fixture makes has any content."""
    place = LAID / file.path
    content = place.read_bytes() if place.is_file() else b"content"
    if file.unpack is not None:
        content = archive_of(file, members_of(file))
    if file.urls[-1].startswith(HAND):
        Path("given").mkdir(exist_ok=True)
        Path("given", file_name(file.urls[-1])).write_bytes(content)
    else:
        publish(server, file.urls[-1], content)


def read(benchmark):
    """The captions of a benchmark, and the content of its images, of which two may be equal."""
    benchmark.load()
    images = {image.path.read_bytes() for image in benchmark.items.images}
    return benchmark.items.texts, images


def lay_out_fixture(reader):
    """Lays a fixture out where the YAML of the benchmark looks; returns it there, and as made."""
    usual = yaml.safe_load((ROOT / f"configs/plugins/benchmarks/{reader}.yaml").read_text())
    kind = type(default_reader(reader))
    made = Path("made", reader)
    made.mkdir(parents=True)
    arguments = kind.fixture(made).spec()["init_args"]
    paths = {}
    for key, value in usual["init_args"].items():
        if "data/" in str(value):
            paths[key] = lay_out(arguments[key], value)
        else:
            arguments[key] = value
    return kind(**arguments | paths), kind(**arguments)


def serve_all(server, name):
    """Publishes the files and images of a source as they are laid out."""
    redeclare(name)
    source = sources()[name]
    for file in source.files:
        serve(server, file)
    for images in source.images:
        folder = LAID / images.folder
        for path in folder.rglob("*.*g"):
            publish(server, images.addresses(path.relative_to(folder))[-1], path)
    return source


@pytest.mark.parametrize(("name", "reader"), READERS)
def test_a_reader_takes_what_came(mirror, name, reader):
    benchmark, made = lay_out_fixture(reader)
    source = serve_all(mirror, name)
    wanted = [Order(name, source, frozenset([reader]))]
    given = Path("given")
    readers = {reader: benchmark}
    downloads.download(wanted, accepted=[name], given=given, readers=readers, patience=SOON)
    assert read(benchmark) == read(made)
