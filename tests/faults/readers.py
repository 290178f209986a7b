"""One valid file of each kind that vlmtune reads, and what reads it.

In: an empty folder. Out: files in it, each with a function that reads it and returns what it read.
Never: a file outside the folder, where the working directory is that folder.
"""

import contextlib
import importlib.util
import io
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from webdataset.writer import TarWriter

from tests.faults import work
from tests.tiny import plugin, write_arrow
from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.adapters.trained_state import trained_state
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.benchmarks import ColaMulti, Retrieval
from vlmtune.cli.main import main as vlmtune
from vlmtune.data import ShardSet, open_image
from vlmtune.data.schema import read_manifest
from vlmtune.data.stream import GroupStream
from vlmtune.data.tables import numbered_rows, source_files
from vlmtune.data.tar_index import SUFFIX, open_index
from vlmtune.errors import UserError
from vlmtune.export import save_export
from vlmtune.features.store import FeatureStore, open_or_build_store
from vlmtune.features.store_key import StoreKey
from vlmtune.mining.build import open_or_build_cache
from vlmtune.mining.cache import CacheKey
from vlmtune.model import check_checkpoint
from vlmtune.model.loading import load_export
from vlmtune.report import Provenance, RunReport, read_items
from vlmtune.results import MetricValue, Result
from vlmtune.types import FeatureSpec, Pooled

MODEL = str(work.MODEL)
PICTURE = "0.png"  # as `work.prepare` writes them
CAPTION = "a red cube left of a blue sphere"
NUMBERS = itertools.count()


class CommandError(Exception):
    """A command ended in another way than in success, or status 2 and one line."""


@dataclass(frozen=True)
class Reader:
    """What reads a file, and `how` for its name.

    A checksum covers a sealed file: a changed one must be an error or be made again, so that what
    is read is the same in any case.
    """

    path: Path
    read: Callable[[], object]
    sealed: bool = False
    how: str = ""

    @property
    def name(self) -> str:
        """The name of the file and of who reads it."""
        return f"{self.path.parent.name}/{self.path.name}{self.how and f' by {self.how}'}"


def command(path: Path, *words: str | Path, sealed: bool = False) -> Reader:
    """A command that reads a file; OUT among its words becomes a new folder."""

    def read() -> str:
        out = Path(f"out-{next(NUMBERS)}")
        error, output = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(error), contextlib.redirect_stdout(output):
            status = vlmtune([str(word).replace("OUT", str(out)) for word in words])
        shutil.rmtree(out, ignore_errors=True)
        lines = error.getvalue().splitlines()
        # A build first says which rows it leaves out.
        count = sum(line.startswith("vlmtune: error: ") for line in lines)
        if status == 2 and count == 1 and (len(lines) == 1 or words[0] == "build"):
            raise UserError(lines[-1])
        if status:
            raise CommandError(f"status {status}, {len(lines)} lines: {' | '.join(lines)}")
        return output.getvalue().replace(str(out), "")

    return Reader(path, read, sealed, f"vlmtune {words[0]}")


def write_valid(folder: Path) -> list[Reader]:
    """Writes the files; returns their readers."""
    work.prepare(folder)
    Image.open(folder / PICTURE).save(folder / "0.jpg")
    parts = (_models, _reports, _shards, _stored, _index, _tables, _saved_datasets, _karpathy)
    parts += (_configs, _images)
    return [reader for part in parts for reader in part(folder)]


def _models(folder: Path) -> Iterator[Reader]:
    backbone, adapter = OpenClip(MODEL), LinearProbe()
    adapter.attach(backbone)
    export, checkpoint = folder / "export", folder / "last.ckpt"
    save_export(export, backbone, adapter, provenance={})
    specs = {"backbone": backbone.spec(), "fingerprint": backbone.fingerprint}
    specs |= {"version": 1, "adapter": adapter.spec()}
    state = trained_state(backbone, adapter)
    torch.save({"state_dict": state, "vlmtune": specs, "global_step": 3}, checkpoint)

    def read_export() -> object:
        return load_export(export, backbone=OpenClip(MODEL))

    yield Reader(export / "adapter_config.json", read_export)
    yield Reader(export / "adapter.safetensors", read_export)
    yield Reader(checkpoint, lambda: check_checkpoint(checkpoint))
    yield command(export / "adapter_config.json", "score", export, PICTURE, "--text", CAPTION)


def _reports(folder: Path) -> Iterator[Reader]:
    metrics = {"accuracy": MetricValue(0.625, 40, 0.25, 0.47, 0.758)}
    origin = Provenance("clip", "none", {}, "f00d", "", {}, {}, "cafe", "2030-01-01", 0, 0, 1.0)
    report = folder / "run/report.json"
    RunReport("run", origin, (Result("bench", "2", "accuracy", metrics),)).save(report)
    row = {"benchmark": "b", "right": True, "files": [PICTURE], "captions": ["x", "y"]}
    row |= {"true": [[True, False]], "scores": [[0.5, 0.25]], "boxes": [[0, 0, 4, 4]]}
    rows = [{**row, "id": f"b/{number}", "rank": number + 1} for number in range(3)]
    items = folder / "items.jsonl"
    items.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    table = folder / "items.csv"
    table.write_text("benchmark,id,right,rank\nb,1,true,3\nb,2,false,1\n")
    yield Reader(report, lambda: RunReport.load(report))
    yield command(report, "report", report, "--out", "OUT")
    yield Reader(items, lambda: read_items(items))
    yield command(items, "report", items, "--out", "OUT")
    yield Reader(table, lambda: read_items(table))


def _shards(folder: Path) -> Iterator[Reader]:
    shards, theirs = folder / "shards", folder / "theirs"
    words = ["build", "table", "table.csv", "--records-per-shard", "12", "--out", str(shards)]
    assert vlmtune(words) == 0
    theirs.mkdir()
    info = read_manifest(shards).shards[0]
    tar, index = shards / info.file, (shards / info.file).with_suffix(SUFFIX)
    with TarWriter(str(theirs / "0.tar"), encoder=False) as writer:
        for number in range(4):
            picture = (folder / f"{number}.png").read_bytes()
            facts = json.dumps({"caption": f"a red cube {number}"}).encode()
            writer.write({"__key__": f"{number:09}", "png": picture, "json": facts})

    def records(data: Path) -> list[Any]:
        stream = GroupStream((ShardSet(str(data)),), 4, train=False, max_damaged=1.0)
        return [(group.key, group.texts) for groups, _ in stream.batches() for group in groups]

    def indexed() -> list[Any]:
        located = open_index(tar, info)
        return [located.record(tar, number) for number in range(info.records)]

    records(shards)  # writes the index
    records(theirs)
    yield Reader(shards / "manifest.json", lambda: read_manifest(shards))
    yield Reader(shards / "manifest.json", lambda: records(shards), how="a training")
    yield Reader(tar, lambda: records(shards))
    yield Reader(index, indexed, sealed=True)
    yield Reader(theirs / "0.tar", lambda: records(theirs))
    yield Reader(theirs / "manifest.json", lambda: records(theirs))


def _stored(folder: Path) -> Iterator[Reader]:
    key = StoreKey("f00d", "text", FeatureSpec("pooled", -1), "cafe")
    rows = [(["a", "b"], Pooled(torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8]])))]

    def store() -> FeatureStore:
        return open_or_build_store(folder, key, lambda: rows, 2)

    def stored() -> object:
        opened = store()
        return opened.ids, opened.features(["a", "b"]).values.tolist()

    numbers = torch.rand(5, 4, generator=torch.Generator().manual_seed(0))
    captions = {f"image {number}": [f"caption {number}"] for number in range(5)}

    def mined() -> object:
        cache = open_or_build_cache(
            folder, CacheKey("f00d", "s", "cafe", 3), captions, lambda: numbers, _score
        )
        return cache.folder, [(cache.similar(x), cache.false_captions(x)) for x in captions]

    built = store().folder
    for name in ("meta.json", "ids.json", "values.bin"):
        yield Reader(built / name, stored, sealed=True)
    cache: Any = mined()
    for name in ("meta.json", "images.json", "captions.json", "neighbours.bin", "false.bin"):
        yield Reader(cache[0] / name, mined, sealed=True)


def _score(images: Any, captions: Any, pairs: torch.Tensor) -> torch.Tensor:
    return (pairs[:, 0] * 3 + pairs[:, 1]).float()


def _index(folder: Path) -> Iterator[Reader]:
    index = folder / "index"
    pictures = [str(folder / f"{number}.png") for number in range(4)]
    assert vlmtune(["index", *pictures, "--model", MODEL, "--out", str(index)]) == 0
    words = ("search", index, CAPTION)
    yield command(index / "index.json", *words)
    for name in ("meta.json", "ids.json", "vectors.bin"):
        yield command(index / "part-00000" / name, *words, sealed=True)


def _tables(folder: Path) -> Iterator[Reader]:
    rows = [{"image": f"{n}.png", "caption": f"a cube {n}", "negatives": ["x"]} for n in range(4)]
    paths = [folder / f"rows.{suffix}" for suffix in ("csv", "tsv", "jsonl", "json")]
    for path, separator in zip(paths, ",\t", strict=False):
        lines = [separator.join(str(cell) for cell in (*row.values(),)[:2]) for row in rows]
        path.write_text("\n".join([separator.join(("image", "caption")), *lines]) + "\n")
    paths[2].write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    paths[3].write_text(json.dumps(rows))
    if importlib.util.find_spec("pyarrow"):
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        write_arrow(folder / "rows", rows)
        beside = (folder / "rows/data-00000-of-00001.arrow").rename(folder / "rows.arrow")
        paths += [folder / "rows.parquet", beside]
        parquet.write_table(arrow.Table.from_pylist(rows), paths[4])
    for path in paths:
        yield Reader(path, lambda path=path: list(numbered_rows(path)))
        yield command(path, "build", "table", path, "--out", "OUT")
    cola = folder / "cola.json"
    cola.write_text(json.dumps([["0.png", "a cube", "1.png", "a sphere"]] * 3))
    yield Reader(cola, lambda: ColaMulti(str(cola), str(folder)).read())


def _saved_datasets(folder: Path) -> Iterator[Reader]:
    """A dataset of two splits as `save_to_disk` writes it, if pyarrow is installed."""
    if not importlib.util.find_spec("pyarrow"):
        return
    saved = folder / "saved"
    # An image of both splits would belong to the test alone.
    for number, split in enumerate(("train", "test")):
        write_arrow(saved / split, [{"image": f"{number}.png", "caption": CAPTION}])
    (saved / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    for path in (saved / "dataset_dict.json", saved / "train/state.json"):
        yield Reader(path, lambda: list(numbered_rows(saved)))
        yield Reader(path, lambda: source_files(saved), how="source_files")
        words = ("--images", folder, "--splits", "[train]", "--out", "OUT")
        yield command(path, "build", "table", saved, *words)


def _karpathy(folder: Path) -> Iterator[Reader]:
    """The caption JSON, whose builder and whose benchmark read it."""
    path = folder / "karpathy.json"
    images = []
    for number in range(4):
        sentences = [{"raw": f"{CAPTION} {word}", "tokens": []} for word in ("here", "there")]
        row = {"filename": f"{number}.png", "split": "train", "sentences": sentences}
        images.append({**row, "imgid": number})
    path.write_text(json.dumps({"images": images, "dataset": "ours"}))
    words = ("--images", folder, "--max-left-out", "1", "--out", "OUT")
    yield command(path, "build", "karpathy", path, *words)
    yield Reader(path, Retrieval(str(path), str(folder), "train").read, how="retrieval")
    shuffled = folder / "captions.json"
    rows = [{"image": PICTURE, "caption": [CAPTION, "a red cube"]}]
    shuffled.write_text(json.dumps(rows))
    yield command(shuffled, "shuffles", "--annotations", shuffled, "--out", "OUT")


def _configs(folder: Path) -> Iterator[Reader]:
    config = work.write_config(work.ALONE, folder, folder / "fit")
    content = json.loads(config.read_text())
    del content["model"]["store"], content["trainer"]["callbacks"]
    config.write_text(json.dumps(content))
    limits = ["--trainer.max_steps=1", "--trainer.default_root_dir=OUT", "--trainer.devices=1"]
    yield command(config, "fit", "--config", config, *limits)

    def written(name: str, spec: dict[str, Any]) -> Path:
        path = folder / f"{name}.yaml"
        path.write_text(json.dumps(spec))
        return path

    table = "data_builders.corpora.table.TableBuilder"
    path = written("builder", {"class_path": table, "init_args": {"path": "table.csv"}})
    yield command(path, "build", path, "--out", "OUT")
    rows = [["0.png", CAPTION, "1.png", "a blue cube left of a red sphere"]] * 3
    (folder / "pairs.json").write_text(json.dumps(rows))
    pairs = {"path": "pairs.json", "images": "."}
    path = written("benchmark", plugin("benchmarks.cola_multi.ColaMulti", **pairs))
    yield command(path, "evaluate", "--model", MODEL, "--benchmarks", path, "--out", "OUT")
    path = written("backbone", plugin("backbones.open_clip.open_clip.OpenClip", model=MODEL))
    yield command(path, "score", path, PICTURE, "--text", CAPTION)
    requests = folder / "requests.json"
    requests.write_text(json.dumps([{"objects": [{"shape": "cube", "color": "red"}]}]))
    yield command(requests, "build", "requests", requests, "--out", "OUT")


def _images(folder: Path) -> Iterator[Reader]:
    for name in ("large.png", "large.jpg", "large.webp", "large.tiff"):
        path = folder / name
        Image.radial_gradient("L").convert("RGB").resize((40, 30)).save(path)
        yield Reader(path, lambda path=path: open_image(path).size)
    yield command(folder / "large.png", "score", MODEL, folder / "large.png", "--text", CAPTION)
