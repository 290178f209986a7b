"""Builds in several processes, in parts, and after a kill: always the same bytes."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from data_builders.corpora.table import TableBuilder
from data_builders.parts import PART, Part, merge
from tests.data.test_images import bomb
from tests.data_builders.conftest import hashes, load
from tests.data_builders.pictures import encoded
from tests.data_builders.test_shard_builder import Files
from tests.refusals import refused
from vlmtune.cli.main import main
from vlmtune.data.schema import MANIFEST, read_manifest

BROKEN = (3, 8, 17)  # rows of the table whose image is damaged
GONE = 11


def corpus(folder: Path) -> TableBuilder:
    """24 images in shards of 3: four are unusable, two are the same and some are held out."""
    builder = TableBuilder(folder / "t.jsonl", held_out=0.1, records_per_shard=3)
    if folder.is_dir() and any(folder.iterdir()):
        return builder
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for n in range(24):
        name = f"{n:02d}.png"
        content = encoded("PNG", shade=10 * (n if n != 20 else 19))
        if n != GONE:
            (folder / name).write_bytes(content[:40] if n in BROKEN else content)
        negative = {"negative": f"no {n}"} if n % 2 else {}
        rows.append({"image": name, "caption": f"text {n}", **negative})
    (folder / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return builder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("table")


@pytest.fixture(scope="module")
def whole(source: Path) -> Path:
    """The corpus, built at once in one process."""
    corpus(source).build(source / "whole", progress=False, max_left_out=0.3)
    return source / "whole"


def test_any_number_of_processes_writes_the_same_bytes(source, whole):
    corpus(source).build(source / "two", progress=False, workers=2, max_left_out=0.3)
    assert hashes(source / "two") == hashes(whole)


@pytest.mark.parametrize("count", [1, 3, 12])
def test_merged_parts_are_the_whole_build(count, source, whole, tmp_path, capsys):
    folders = [tmp_path / f"part-{n}" for n in range(1, count + 1)]
    for n, folder in enumerate(folders, 1):
        corpus(source).build(folder, False, part=Part(n, count), max_left_out=0.3)
        assert not (folder / MANIFEST).exists()
    tars = [path.name for folder in folders for path in folder.glob("*.tar")]
    assert sorted(tars) == sorted(path.name for path in whole.glob("*.tar"))
    if count == 3:
        assert all(any(folder.glob("*.tar")) for folder in folders)
    words = ["build", "merge", *map(str, reversed(folders)), "--out", str(tmp_path / "merged")]
    assert main([*words, "--max_left_out", "0.3"]) == 0
    assert hashes(tmp_path / "merged") == hashes(whole)
    assert f"{len(tars)} shards" in capsys.readouterr().out
    before = hashes(folders[0])
    corpus(source).build(folders[0], False, part=Part(1, count))
    assert hashes(folders[0]) == before
    assert "reusing it" in capsys.readouterr().err


@pytest.fixture
def parts(source: Path, tmp_path: Path) -> list[Path]:
    folders = [tmp_path / "p1", tmp_path / "p2"]
    for n, folder in enumerate(folders, 1):
        corpus(source).build(folder, False, part=Part(n, 2), max_left_out=0.3)
    return folders


def test_a_merge_needs_every_part_once(parts, source, tmp_path):
    one, two = parts
    out = tmp_path / "merged"
    with refused(r"got 1/2 \(.*p1\); missing: 2/2"):
        merge([one], out)
    shutil.copytree(one, tmp_path / "again")
    with refused(r"got 1/2 .*, 2/2 .*, 1/2 .*again\); missing: none"):
        merge([one, two, tmp_path / "again"], out)
    with refused("expected a part that `vlmtune build NAME --part 1/8"):
        merge([one, tmp_path], out)
    other = corpus(source / "other")
    other.build(tmp_path / "o2", False, part=Part(2, 2), max_left_out=0.3)
    with refused("differ in their arguments"):
        merge([one, tmp_path / "o2"], out)
    corpus(source).build(tmp_path / "p3", False, part=Part(2, 3), max_left_out=0.3)
    with refused("missing: 2/3, 3/3|missing: 1/3, 3/3"):
        merge([one, tmp_path / "p3"], out)
    with refused("at most 2% of 24 rows to be unusable, got 4"):
        merge(parts, out)
    assert not out.exists()
    merge(parts, out, limit=0.3)
    with refused("to be free"):
        merge(parts, out, limit=0.3)


def test_a_damaged_part_is_refused(parts, tmp_path):
    two = parts[1]
    shard = next(iter(sorted(two.glob("*.tar"))))
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + b"x")
    with refused("its sha256 differs"):
        merge(parts, tmp_path / "out", limit=0.3)
    shard.write_bytes(content[:-1])
    with refused("missing or truncated"):
        merge(parts, tmp_path / "out", limit=0.3)
    shard.write_bytes(content)
    part = load(two / PART)
    (two / PART).write_text(json.dumps(part | {"states": part["states"][1:]}))
    with refused("some are missing"):
        merge(parts, tmp_path / "out", limit=0.3)
    contents = part["contents"] | {"records": "0" * 64}
    (two / PART).write_text(json.dumps(part | {"contents": contents}))
    with refused("differ in their contents"):
        merge(parts, tmp_path / "out", limit=0.3)
    (two / PART).write_text(json.dumps(part | {"states": [[0]]}))
    with refused("expected a part of a build in .*, got .* at states/0"):
        merge(parts, tmp_path / "out", limit=0.3)


def test_parts_of_an_image_that_came_between_are_refused(tmp_path):
    corpus(tmp_path / "t").build(tmp_path / "p1", False, part=Part(1, 2), max_left_out=0.3)
    (tmp_path / f"t/{GONE:02d}.png").write_bytes(encoded("PNG", shade=255))
    corpus(tmp_path / "t").build(tmp_path / "p2", False, part=Part(2, 2), max_left_out=0.3)
    with refused("differ in their sources"):
        merge([tmp_path / "p1", tmp_path / "p2"], tmp_path / "out", limit=0.3)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/3/4"])
def test_a_wrong_part(text):
    with refused("expected a part as 1/8"):
        Part.parse(text)


def test_only_shards_have_parts(tmp_path, capsys):
    assert main(["build", "scenes", "--part", "1/2", "--out", str(tmp_path / "out")]) == 2
    assert "expected a builder of shards" in capsys.readouterr().err
    assert main(["build", "merge", "--out", str(tmp_path / "out")]) == 2
    assert "vlmtune build merge PART" in capsys.readouterr().err
    assert main(["build", "merge", "--help"]) == 0
    assert "usage: vlmtune build merge" in capsys.readouterr().out


KILLED = """
import os, signal, sys
from pathlib import Path
from data_builders.unfinished import Unfinished
from vlmtune.cli.main import main

add = Unfinished.add

def stopping(self, state):
    add(self, state)
    if len(self.states) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    Unfinished.add = stopping
    main(sys.argv[1:])
"""


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_build_goes_on_from_its_last_complete_shard(workers, source, whole, tmp_path):
    out = tmp_path / "out"
    (tmp_path / "killed.py").write_text(KILLED)
    words = ["build", "table", source / "t.jsonl", "--held-out", "0.1", "--records_per_shard", "3"]
    words += ["--max_left_out", "0.3", "--workers", str(workers), "--out", out]
    build = subprocess.run([sys.executable, tmp_path / "killed.py", *words], check=False)
    assert build.returncode == -signal.SIGKILL
    (tmp_path / "killed.py").unlink()
    assert not out.exists()
    (left,) = tmp_path.iterdir()
    assert left.name == ".out.build"
    done = sorted(int(path.stem) for path in (left / "states").glob("*.json"))
    assert len(done) == 2
    before = {n: (left / f"shards/shard-{n:06d}.tar").stat().st_ino for n in done}
    (left / "shards/shard-000006.tar").write_bytes(b"half")
    (left / "shards/shard-000099.tar").write_bytes(b"of nothing")
    corpus(source).build(out, progress=False, max_left_out=0.3)
    assert hashes(out) == hashes(whole)
    assert {n: (out / f"shard-{n:06d}.tar").stat().st_ino for n in done} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_complete_shard_is_written_again_if_it_or_its_images_changed(tmp_path):
    def builder() -> Files:
        return Files(images, [f"{n}.png" for n in range(6)], looks=False)

    images = tmp_path / "images"
    images.mkdir()
    for n in range(6):
        (images / f"{n}.png").write_bytes(encoded("PNG", shade=n))
    (images / "5.png").write_bytes(b"no image")
    with refused(r"at most 2% of 6 images to be unusable, got 1, first .*5.png: image broken"):
        builder().build(tmp_path / "out", progress=False)
    left = tmp_path / ".out.build"
    assert len(list((left / "states").iterdir())) == 3
    shards = [left / f"shards/shard-{n:06d}.tar" for n in range(3)]
    first = shards[0].stat().st_ino
    damaged = bytearray(shards[1].read_bytes())
    damaged[600] ^= 1
    shards[1].write_bytes(damaged)
    (images / "5.png").write_bytes(encoded("PNG", shade=5))
    (left / "states/000007.json").write_text("{")  # a state that cannot be read
    builder().build(tmp_path / "out", progress=False)
    assert (tmp_path / "out" / shards[0].name).stat().st_ino == first
    builder().build(tmp_path / "clean", progress=False)
    assert hashes(tmp_path / "out") == hashes(tmp_path / "clean")
    assert read_manifest(tmp_path / "out").records == 6
    # A leftover of another build is removed by the next one.
    (images / "1.png").write_bytes(b"no image")
    with refused("got 1"):
        builder().build(tmp_path / "next", progress=False)
    assert (tmp_path / ".next.build").is_dir()
    Files(images, ["0.png"]).build(tmp_path / "next", progress=False)
    assert read_manifest(tmp_path / "next").records == 1
    assert not (tmp_path / ".next.build").exists()


def test_every_kind_of_bad_image_is_listed(tmp_path, capsys):
    bad = {
        "bomb.png": (bomb(9000, 9000), r"9000 x 9000 pixels, allowed are 1 to 64000000 pixels"),
        "cut.jpg": (encoded("JPEG")[:-200], "Truncated"),
        "empty.png": (b"", "cannot identify image file"),
        "text.png": (b"not an image", "cannot identify image file"),
    }
    (tmp_path / "good.png").write_bytes(encoded("PNG"))
    for name, (content, _) in bad.items():
        (tmp_path / name).write_bytes(content)
    out = tmp_path / "out"
    Files(tmp_path, ["good.png", *bad, "none.png"]).build(out, progress=False, max_left_out=0.9)
    manifest = read_manifest(out)
    assert manifest.counts == {
        "captions": 1, "skipped: image broken": 4, "skipped: image missing": 1,
    }  # fmt: skip
    assert manifest.records == 1
    lines = (out / "left_out.txt").read_text().splitlines()
    assert lines[0] == f"{tmp_path}/none.png: image missing"
    for line, (name, (_, reason)) in zip(lines[1:], bad.items(), strict=True):
        assert line.startswith(f"{tmp_path}/{name}: image broken: ")
        assert reason in line
    printed = capsys.readouterr().err.splitlines()
    assert printed == [f"left out: {line}" for line in lines]
