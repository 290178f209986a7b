"""Every plug-in has a source, and what a source brings lies where its plug-ins look."""

from pathlib import Path, PurePosixPath

import pytest
import yaml

from scripts.sources_page import PAGE, page
from vlmtune.config import ROOT
from vlmtune.sources.addresses import request_of
from vlmtune.sources.ledger import Ledger
from vlmtune.sources.order import orders
from vlmtune.sources.source import source_of, sources
from vlmtune.sources.state import missing_bytes

PLUGINS = sorted(
    path
    for kind in ("benchmarks", "builders")
    for path in ROOT.glob(f"configs/plugins/{kind}/*.yaml")
)
# Paths of files that a person makes: own tables, and what `vlmtune build` writes.
BUILT = ("scenes", "questions", "mine", "transfer")


def data_paths(value):
    """All paths below `data` in a YAML, without `data`."""
    if isinstance(value, dict):
        return [path for item in value.values() for path in data_paths(item)]
    if isinstance(value, list):
        return [path for item in value for path in data_paths(item)]
    if isinstance(value, str) and value.startswith("data/"):
        return [PurePosixPath(value).relative_to("data")]
    return []


def is_brought(path, order):
    """Whether a download brings a path, or something below it."""
    for file in order.files:
        place = PurePosixPath(file.path)
        if path == place or place.is_relative_to(path):
            return True
        if file.unpack is not None and path.is_relative_to(place):
            return True
    if any(path.is_relative_to(conversion.makes) for conversion in order.conversions):
        return True
    brought = [images.folder for images in order.images]
    brought += [conversion.makes for conversion in order.conversions]
    by_hand = " ".join(order.source.steps)
    return any(PurePosixPath(place).is_relative_to(path) for place in brought) or (
        str(path) in by_hand
    )


@pytest.mark.parametrize("path", PLUGINS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_a_plug_in_reads_is_what_its_sources_bring(path):
    ordered = orders([path.stem])
    kind = path.parent.name
    serving = [order for order in ordered if path.stem in getattr(order.source.serves, kind)]
    assert serving or path.stem in sources()
    for wanted in data_paths(yaml.safe_load(path.read_text(encoding="utf-8"))):
        if wanted.parts[0] not in BUILT:
            assert any(is_brought(wanted, order) for order in ordered), wanted


@pytest.mark.parametrize("name", sorted(sources()))
def test_a_source_names_what_there_is(name):
    source = sources()[name]
    known = {kind: set() for kind in ("benchmarks", "builders")}
    for path in PLUGINS:
        known[path.parent.name].add(path.stem)
    assert set(source.serves.benchmarks) <= known["benchmarks"]
    assert set(source.serves.builders) <= known["builders"]
    # A name that is a source and a plug-in is that of one thing.
    if name in known["benchmarks"] | known["builders"]:
        assert name in source.names
    for item in (*source.files, *source.convert):
        assert set(item.of) <= set(source.names)
    for images in source.images:
        assert images.of in source.serves.benchmarks
        assert set(images.whole) <= set(sources())
    for conversion in source.convert:
        module, _, function = conversion.call.rpartition(".")
        assert callable(getattr(__import__(module, fromlist=[function]), function))
    if source.access == "shipped":
        assert Path(ROOT, source.model.file).is_dir()
    elif source.model is not None:
        paths = [PurePosixPath(file.path) for file in source.files]
        model = PurePosixPath(source.model.file)
        assert any(path.is_relative_to(model) or model.is_relative_to(path) for path in paths)
    single = [file.path for file in source.files if file.unpack is None]
    assert len(single) == len(set(single))
    assert Path(ROOT, "configs/sources", f"{name}.yaml").stat().st_size < 8000


def test_names_are_escaped_once_and_files_find_their_source():
    (images,) = sources()["mmvp_vlm"].images
    first, second = images.addresses(PurePosixPath("Texts and more/1.jpg"))
    end = "MLLM_VLM%20Images/Texts%20and%20more/1.jpg"
    assert request_of(first).url.endswith(f"/resolve/main/{end}")
    assert request_of(second).url.endswith("/resolve/main/MLLM_VLM%20Images/1.jpg")
    assert source_of(Path("data/coco/train2014/COCO_train2014_1.jpg")) == "coco"
    assert source_of(Path("data/coco/nothing.json")) is None


def test_the_page_is_what_the_sources_say():
    assert page() == PAGE.read_text(encoding="utf-8"), "run `python -m scripts.sources_page`"


def test_an_archive_needs_the_room_of_its_members_beside_it(tmp_path):
    (order,) = orders(["coco_val2017"])
    (archive,) = order.files
    assert missing_bytes(order, Ledger(tmp_path)) == 2 * archive.bytes
