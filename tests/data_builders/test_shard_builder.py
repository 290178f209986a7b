import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from data_builders.shard_builder import Record, ShardBuilder
from tests.data_builders.pictures import encoded
from tests.refusals import refused
from vlmtune.data.schema import MANIFEST, read_manifest
from vlmtune.data.shards import decode_group
from vlmtune.data.tar_records import RawRecord, read_records
from vlmtune.errors import UserError
from vlmtune.types import Group


def group(key: str, images: int = 1) -> Group:
    names = tuple(f"{key}-{i}" for i in range(images))
    return Group(
        key=key,
        image_ids=names,
        text_ids=names,
        texts=tuple(f"Grüße {name}" for name in names),
        truth=torch.eye(images, dtype=torch.bool),
        true_ids=tuple(frozenset({name}) for name in names),
        exhaustive=True,
    )


class Corpus(ShardBuilder):
    """One record for each line of a file; `bad` is the fault of the third."""

    def __init__(self, annotations: str, bad: str = "", records_per_shard: int = 3) -> None:
        super().__init__(records_per_shard)
        self.annotations, self.bad = annotations, bad

    def sources(self) -> dict[str, Path]:
        return {"annotations": Path(self.annotations)}

    def records(self) -> Iterator[Record]:
        for number, line in enumerate(Path(self.annotations).read_text().split()):
            if line == "skip":
                self.counts["skipped: no caption"] += 1
                continue
            yield self.spoiled(line, number) if number == 2 else (group(line), [encoded("PNG")])

    def spoiled(self, key: str, number: int) -> Record:
        if self.bad == "crash":
            raise RuntimeError("the corpus is odd")
        records: dict[str, Record] = {
            "": (group(key, 2), [encoded("JPEG"), encoded("WEBP")]),
            "twice": (group("a"), [encoded("PNG")]),
            "key": (group("a b"), [encoded("PNG")]),
            "few": (group(key, 2), [encoded("PNG")]),
        }
        return records[self.bad]


@pytest.fixture
def annotations(tmp_path: Path) -> str:
    path = tmp_path / "annotations.txt"
    path.write_text("a b c d skip e f g h skip")
    return str(path)


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_shards_and_manifest_say_what_was_built_and_images_stay_as_they_are(
    annotations: str, tmp_path: Path
) -> None:
    out = tmp_path / "deep" / "out"
    Corpus(annotations).build(out, progress=False)
    names = ["shard-000000.tar", "shard-000001.tar", "shard-000002.tar"]
    assert sorted(path.name for path in out.iterdir()) == [MANIFEST, *names]
    manifest = read_manifest(out)
    want = list(zip(names, (3, 3, 2), (4, 3, 2), strict=True))
    assert [(s.file, s.records, s.images) for s in manifest.shards] == want
    assert (manifest.records, manifest.images) == (8, 9)
    assert manifest.counts == {"skipped: no caption": 2}
    assert list(manifest.sources) == ["annotations"]
    assert manifest.builder.endswith("Corpus")
    assert manifest.arguments == {"annotations": annotations, "bad": "", "records_per_shard": 3}
    assert out.stat().st_mode & 0o077 == (tmp_path / "deep").stat().st_mode & 0o077
    *_, pair = read_records(out / "shard-000000.tar", 3)
    assert isinstance(pair, RawRecord)
    assert list(pair.members) == ["0.jpg", "1.webp", "json"]
    assert pair.members["1.webp"] == encoded("WEBP")
    read, written = decode_group(pair), group("c", 2)
    for name in ("key", "image_ids", "text_ids", "texts", "true_ids", "exhaustive"):
        assert getattr(read, name) == getattr(written, name)
    assert read.truth.equal(written.truth)


def test_the_same_build_is_reused_unless_it_lost_a_shard(annotations, tmp_path, capsys):
    out = tmp_path / "out"
    Corpus(annotations).build(out, progress=False)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    leftover = tmp_path / ".out.build/states"  # of a kill after the last step
    leftover.mkdir(parents=True)
    Corpus(annotations).build(out)
    assert not leftover.parent.exists()
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert "reusing it" in capsys.readouterr().err
    (out / "shard-000001.tar").write_bytes(b"")
    with refused("missing or truncated: remove"):
        Corpus(annotations).build(out)


def test_anything_else_in_the_folder_is_refused(annotations: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    Corpus(annotations).build(out, progress=False)
    with refused("holds something else"):
        Corpus(annotations, records_per_shard=2).build(out)
    Path(annotations).write_text("a b")
    with refused("holds something else"):
        Corpus(annotations).build(out)
    (tmp_path / "file").write_text("x")
    with refused("expected a folder, got the file .*: choose another --out"):
        Corpus(annotations).build(tmp_path / "file")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / MANIFEST).write_text("[]")
    with refused("holds something else"):
        Corpus(annotations).build(tmp_path / "other")
    (tmp_path / "empty").mkdir()
    Corpus(annotations).build(tmp_path / "empty", progress=False)
    assert read_manifest(tmp_path / "empty").records == 2


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("crash", "the corpus is odd"),
        ("twice", r"got 'a' \(twice\)"),
        ("key", "got 'a b'"),
        ("few", r"got 'c' \(1 images for \('c-0', 'c-1'\)\)"),
    ],
)
def test_a_failed_build_leaves_nothing(bad, message, annotations, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(RuntimeError if bad == "crash" else UserError, match=message) as error:
        Corpus(annotations, bad).build(out, progress=False)
    assert "\n" not in str(error.value)
    assert not out.exists()
    assert not hidden(tmp_path)


def test_bad_arguments_and_sources(annotations: str, tmp_path: Path) -> None:
    with refused("download it or correct the path"):
        Corpus(str(tmp_path / "none")).build(tmp_path / "out")
    Path(annotations).write_text("skip")
    with refused("expected records from Corpus, got none.*the folder of the images"):
        Corpus(annotations).build(tmp_path / "out", progress=False)
    with refused("expected a folder that can be written"):
        Corpus(annotations).build(Path(annotations) / "out")


def test_of_two_builds_of_one_folder_the_second_waits(annotations, tmp_path, capsys):
    out = tmp_path / "out"
    second = threading.Thread(target=lambda: Corpus(annotations).build(out, progress=False))

    class First(Corpus):
        def records(self) -> Iterator[Record]:
            if not second.is_alive():
                second.start()
            yield from super().records()

    First(annotations).spec()
    builder = First(annotations)
    builder.identity = Corpus(annotations).identity  # the same build
    builder.build(out, progress=False)
    second.join()
    assert read_manifest(out).records == 8
    assert "already contains this build" in capsys.readouterr().err
    assert not hidden(tmp_path)


class Files(ShardBuilder):
    """One record for each name in a folder that exists, or for each name."""

    def __init__(self, folder: Path, names: list[str], looks: bool = True, size: int = 2) -> None:
        super().__init__(size)
        self.folder, self.names, self.looks = folder, names, looks

    def records(self) -> Iterator[Record]:
        for name in self.names:
            file = self.folder / name
            if not self.looks or self.exists(file):
                self.counts["captions"] += 1
                yield group(name.partition(".")[0]), [file]


@pytest.mark.parametrize("looks", [True, False])
def test_where_every_image_is_unusable_the_list_that_the_error_names_is_there(
    tmp_path: Path, looks: bool, capsys
) -> None:
    names = [f"{n}.jpg" for n in range(25)]
    reason = "image missing"
    if not looks:  # the images are there, and broken
        reason = "image broken"
        for name in names:
            (tmp_path / name).touch()
    file = tmp_path / "out.left_out.txt"
    with refused(rf"got none, .*first .*0\.jpg.*\(all in {file}: {reason} 25\): check"):
        Files(tmp_path, names, looks).build(tmp_path / "out", progress=False, max_left_out=1.0)
    assert len(file.read_text().splitlines()) == 25
    assert ("0.jpg: image broken: cannot identify image file" in file.read_text()) != looks
    printed = capsys.readouterr().err
    assert "next to the shards" not in printed
    assert "left out: " not in printed  # the error is the line that matters
    (tmp_path / "0.jpg").write_bytes(encoded("JPEG"))
    Files(tmp_path, names, looks).build(tmp_path / "out", progress=False, max_left_out=1.0)
    assert not file.exists()
    assert (tmp_path / "out/left_out.txt").is_file()


def test_a_record_of_two_bad_images_takes_its_counts_along_once(tmp_path: Path) -> None:
    class Pairs(Files):
        def records(self) -> Iterator[Record]:
            for name in self.names:
                self.counts["pairs"] += 1
                yield group(name.partition(".")[0], images=2), [self.folder / name] * 2

    (tmp_path / "0.jpg").write_bytes(encoded("JPEG"))
    (tmp_path / "1.jpg").touch()
    Pairs(tmp_path, ["0.jpg", "1.jpg"]).build(tmp_path / "out", progress=False, max_left_out=1.0)
    assert read_manifest(tmp_path / "out").counts["pairs"] == 1


def test_progress_is_shown_on_terminals_only(annotations, tmp_path, capsys, monkeypatch):
    Corpus(annotations).build(tmp_path / "plain")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    Corpus(annotations).build(tmp_path / "quiet", progress=False)
    assert capsys.readouterr() == ("", "")
    Corpus(annotations).build(tmp_path / "shown")
    shown = capsys.readouterr().err
    assert "Corpus" in shown
    assert "8/?" in shown
