"""The builder of tables: one record an image, splits without leaks, measured images left out."""

import csv
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data_builders.corpora.folder import FolderBuilder
from data_builders.corpora.table import TableBuilder
from data_builders.measured_images import difference_hash
from data_builders.shard_builder import Builder
from tests.refusals import refused
from tests.tiny import encoded
from vlmtune.data.schema import check, read_manifest
from vlmtune.data.shards import decode_group
from vlmtune.data.tar_records import read_records


def picture(seed: int, size: int = 64, kind: str = "PNG") -> bytes:
    """A smooth picture; of one seed the same picture at any size."""
    coarse = np.random.default_rng(seed).integers(0, 256, (8, 9, 3), dtype=np.uint8)
    return encoded(Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC), kind)


def table(folder: Path, *rows: dict, name: str = "t.jsonl") -> Path:
    """Writes rows, with picture n as `n.png` where a row names it."""
    for row in rows:
        for key in ("image", "image_neg"):
            if key in row:
                (folder / row[key]).write_bytes(picture(int(Path(row[key]).stem)))
    path = folder / name
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def records(builder: TableBuilder) -> list:
    groups = []
    for group, images in builder.checked_records():
        check(group)
        assert len(images) == len(group.image_ids)
        groups.append(group)
    return groups


def names(groups: list) -> list[str]:
    return [image.partition(" ")[0] for group in groups for image in group.image_ids]


def test_an_image_of_five_rows_is_looked_up_once(tmp_path, monkeypatch):
    rows = [{"image": f"{i // 5}.png", "caption": f"{i}"} for i in range(10)]
    builder, looked_up = TableBuilder(table(tmp_path, *rows)), []
    stat = Path.stat

    def noted(path, **options):
        looked_up.append(path.name)
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", noted)
    lines = list(builder._listing())
    assert [line.split()[0] for line in lines] == [row["image"] for row in rows]
    # A shared file system answers slowly, and a table of captions has five rows an image.
    # Since Python 3.14 `Path.is_file` does not call `Path.stat`.
    assert 1 <= looked_up.count("0.png") == looked_up.count("1.png") <= 2
    assert looked_up.count(tmp_path.name) <= 1


def test_rows_of_one_image_are_one_record(tmp_path, capsys):
    path = table(
        tmp_path,
        {"image": "1.png", "caption": "a dog", "negative": ["a cat", "a cow"]},
        {"image": "2.png", "caption": ["a cow"]},
        {"image": "1.png", "caption": ["a brown dog", "a cow"]},
        {"image": "3.png", "caption": []},
    )
    (tmp_path / "4.png").write_bytes(picture(1))  # the first image under another name
    with path.open("a") as file:
        file.write('\n{"image": "4.png", "caption": "a pet"}')
    builder = TableBuilder(path)
    first, second = records(builder)
    assert first.texts == ("a dog", "a brown dog", "a cow", "a pet", "a cat")
    assert first.truth.tolist() == [[True, True, True, True, False]]
    assert first.true_ids == (frozenset(first.texts[:4]),)
    assert second.texts == ("a cow",)
    assert names([first, second]) == ["1.png", "2.png"]
    assert builder.counts == {
        "captions": 5,
        "hard negatives": 1,
        "skipped: no caption": 1,
        "skipped: hard negative true in another row": 1,
    }
    assert [line.text() for line in builder.left_out.lines] == [
        f"line 4 of {path}: no caption: 3.png"
    ]
    assert capsys.readouterr().err == (
        "t.jsonl: image from 'image', caption from 'caption', negative from 'negative'\n"
    )


def test_absolute_names_in_the_folder_of_the_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(tmp_path, {"image": "1.png", "caption": "a"})
    spelled = [str(tmp_path / "1.png"), "./1.png", "x/../1.png"]
    lines = ["image,caption", *(f"{name},{name[0]}" for name in spelled)]
    Path("t.csv").write_text("\n".join(lines))
    builder = TableBuilder(Path("t.csv"))
    builder.build(Path("out"), progress=False)
    (group,) = records(TableBuilder(Path("t.csv")))
    assert set(group.texts) == {"/", ".", "x"}


def test_a_hard_negative_image_makes_a_pair(tmp_path):
    path = table(
        tmp_path,
        {"image": "1.png", "caption": "a", "image_neg": "2.png", "negative": "b"},
        {"image": "2.png", "caption": "c"},
        {"image": "1.png", "caption": "d", "image_neg": "3.png"},
        {"image": "1.png", "caption": "e", "image_neg": "4.png"},
        {"image": "4.png", "caption": "E."},
    )
    pair, single, half, both, _ = records(TableBuilder(path))
    assert (pair.texts, pair.truth.int().tolist()) == (("a", "b"), [[1, 0], [0, 1]])
    assert pair.true_ids == (frozenset("ade"), frozenset("bc"))
    assert single.image_ids == (pair.image_ids[1],)
    assert single.true_ids == (frozenset("bc"),)
    assert (half.texts, half.truth.int().tolist()) == (("d",), [[1], [0]])
    assert (both.texts, both.truth.int().tolist()) == (("e",), [[1], [1]])  # as another row says
    assert len({group.key for group in (pair, single, half)}) == 3
    with refused("the same content twice, in '1.png' and '1.png'"):
        records(
            TableBuilder(table(tmp_path, {"image": "1.png", "caption": "a", "image_neg": "1.png"}))
        )


def test_ids_of_two_images_splits_of_other_names_and_measured_images_alone_are_refused(tmp_path):
    rows = [{"id": "x", "image": f"{n}.png", "caption": "a"} for n in (1, 1, 2)]
    with refused(r"one image for the id 'x', got two, in line 1 of .* and line 3 of"):
        records(TableBuilder(table(tmp_path, *rows)))
    assert len(records(TableBuilder(table(tmp_path, *rows), columns={"id": None}))) == 2
    path = table(tmp_path, {"image": "1.png", "caption": "a"})
    builder = TableBuilder(path, measured=[path])
    with refused(r"got none.*\(1 images are in `measured`\)"):
        builder.build(tmp_path / "out", progress=False)
    named = enumerate(["A", ""])  # a cell may be blank
    rows = [{"image": f"{n}.png", "caption": "a", "split": name} for n, name in named]
    with refused(r"got none: name some, as --splits '\[A\]'"):
        records(TableBuilder(table(tmp_path, *rows)))


def test_an_image_is_in_one_split(tmp_path):
    rows = [
        *({"image": f"{n}.png", "caption": f"t{n}", "split": "train"} for n in range(1, 5)),
        {"image": "5.png", "caption": "v5", "split": "val"},
        {"image": "1.png", "caption": "v1", "split": "val"},
        {"image": "2.png", "caption": "e2", "split": "test"},
        {"image": "5.png", "caption": "e5", "split": "test"},
        {"image": "3.png", "image_neg": "6.png", "caption": "t36", "split": "train"},
        {"image": "6.png", "caption": "v6", "split": "val"},
    ]
    path = table(tmp_path, *rows)
    written = {}
    for splits in (None, ["val"], ["test"], ["train", "val", "test"]):
        builder = TableBuilder(path, splits=splits)
        written[str(splits)] = set(names(records(builder)))
    assert written == {
        "None": {"4.png"},
        "['val']": {"1.png", "6.png"},
        "['test']": {"2.png", "5.png"},
        "['train', 'val', 'test']": {f"{n}.png" for n in range(1, 7)},
    }
    builder = TableBuilder(path)
    records(builder)
    assert builder.counts["skipped: image also in another split"] == 4  # 1, 2, 3 and the pair
    assert builder.counts["skipped: another split"] == 5
    with refused(r"splits out of \['test', 'train', 'val'\].*'trian'"):
        records(TableBuilder(path, splits=["trian"]))
    with refused("column 'split'"):
        records(TableBuilder(path, held_out=0.1))


def test_a_fraction_is_held_out_by_content(tmp_path):
    rows = [{"image": f"{n}.png", "caption": f"c{n}"} for n in range(40)]
    rows += [{"image": "1.png", "image_neg": "2.png", "caption": "x"}]
    path = table(tmp_path, *rows)
    options = {"held_out": 0.3}
    train = set(names(records(TableBuilder(path, **options))))
    val = set(names(records(TableBuilder(path, splits=["val"], **options))))
    digest = {n: hashlib.sha256(picture(n)).digest() for n in range(40)}
    digest[1] = digest[2] = min(digest[1], digest[2])
    want = {f"{n}.png" for n, x in digest.items() if int.from_bytes(x[:8], "big") < 0.3 * 2**64}
    assert val == want
    assert train == {f"{n}.png" for n in range(40)} - want
    with refused("expected a column of splits"):
        records(TableBuilder(path, splits=["val"]))


def test_measured_images_are_left_out_by_content(tmp_path, capsys):
    path = table(tmp_path, *({"image": f"{n}.png", "caption": "c"} for n in range(6)))
    test = tmp_path / "test"
    test.mkdir()
    (test / "5.png").write_bytes(picture(77))  # another image of a name that training has
    (test / "x.png").write_bytes(picture(1))
    (test / "y.jpg").write_bytes(picture(2, size=200, kind="JPEG"))  # a scaled copy
    builder = TableBuilder(path, measured=[test])
    assert names(records(builder)) == ["0.png", "2.png", "3.png", "4.png", "5.png"]
    assert builder.counts["skipped: measured"] == 1
    assert builder.counts["similar to a measured image"] == 1
    assert "1 image like measured ones, kept: 2.png (y.jpg)" in capsys.readouterr().err
    # A table beside its images is compared by their content, an annotation file by names.
    (test / "t.csv").write_text("image,caption\n5.png,a\nx.png,b\n")
    assert names(records(TableBuilder(path, measured=[test / "t.csv"])))[:2] == ["0.png", "2.png"]
    (tmp_path / "names.json").write_text('[{"filename": "far/3.png"}, {"filename": "far/4.png"}]')
    builder = TableBuilder(path, measured=[tmp_path / "names.json"])
    assert names(records(builder)) == ["0.png", "1.png", "2.png", "5.png"]
    # Where a part of the images is missing, names are compared as well.
    (test / "names.json").write_text('[{"filename": "x.png"}, {"filename": "far/3.png"}]')
    for measured in (test, test / "names.json"):
        builder = TableBuilder(path, measured=[measured])
        assert names(records(builder)) == ["0.png", "2.png", "4.png", "5.png"]


def test_difference_hash():
    values = [difference_hash(picture(seed)) for seed in range(20)]
    assert len(set(values)) == 20
    for seed in range(20):
        copy = difference_hash(picture(seed, size=150, kind="JPEG"))
        assert copy is not None
        distances = [(copy ^ value).bit_count() for value in values if value is not None]
        assert distances[seed] <= 4 < min(distances[:seed] + distances[seed + 1 :])
    assert difference_hash(encoded(Image.new("RGB", (20, 20), "red"))) is None


def test_a_builder_states_the_files_among_its_arguments(tmp_path, monkeypatch):
    for name in ("a.txt", "b.txt", "sub/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)

    class Reader(Builder):
        def __init__(self, path: str) -> None:
            self.path = path

        def write(self, folder, tick):
            pass

    class Plain(Reader):
        def __init__(self, path: str, more: list, reader: Reader, folder: str, n: int = 3) -> None:
            super().__init__(path)

    made = Plain("a.txt", [Path("sub/a.txt")], Reader("b.txt"), "sub")
    files = {"a.txt": Path("a.txt"), "a.txt (2)": Path("sub/a.txt"), "b.txt": Path("b.txt")}
    assert made.sources() == files
    assert made.checksums()["b.txt"] == hashlib.sha256(b"b.txt").hexdigest()
    made.build(tmp_path / "out", progress=False)
    Path("b.txt").write_text("changed")
    with refused("holds something else"):
        made.build(tmp_path / "out", progress=False)


def test_folders(tmp_path, capsys):
    folder = tmp_path / "images"  # as a manifest calls the list of image files
    folder.mkdir()
    for n in range(3):
        (folder / f"{n}.png").write_bytes(picture(n))
        (folder / f"{n}.txt").write_text(f"first {n}\nsecond {n}\n")
    (folder / "2.json").write_text('{"negative": ["third"]}')
    for hidden in ("._0.png", ".copies/0.png"):  # as macOS and notebooks leave
        (folder / hidden).parent.mkdir(exist_ok=True)
        (folder / hidden).write_bytes(b"hidden")
    groups = records(FolderBuilder(folder))
    assert [group.texts for group in groups] == [
        ("first 0", "second 0"),
        ("first 1", "second 1"),
        ("first 2", "second 2", "third"),
    ]
    assert groups[2].truth.equal(torch.tensor([[True, True, False]]))
    out = folder / "out"  # what is built in the folder is none of its sources
    FolderBuilder(folder).build(out, progress=False)
    FolderBuilder(folder).build(out, progress=False)
    assert "reusing it" in capsys.readouterr().err
    (folder / "1.txt").write_text("changed")
    with refused("holds something else"):
        FolderBuilder(folder).build(out, progress=False)


def test_a_folder_of_any_kind_of_image_is_built_and_one_bad_sidecar_is_listed(tmp_path, capsys):
    folder = tmp_path / "photos"
    folder.mkdir()
    for n, kind in enumerate(("GIF", "BMP", "TIFF", "PNG", "JPEG")):
        (folder / f"{n}.{kind.lower()}").write_bytes(picture(n, kind=kind))
        (folder / f"{n}.json").write_text(json.dumps({"caption": kind}) if n != 3 else "{")
    builder = TableBuilder(folder)
    builder.build(tmp_path / "out", progress=False, max_left_out=0.3)
    manifest = read_manifest(tmp_path / "out")
    assert manifest.records == 4
    assert manifest.counts["skipped: unreadable row"] == 1
    assert "row 4 of" in capsys.readouterr().err
    groups = [decode_group(raw) for raw in read_records(next((tmp_path / "out").glob("*.tar")), 4)]
    decoded = {group.texts[0]: group.images[0] for group in groups}
    want = Image.open(folder / "1.bmp").convert("RGB")
    assert decoded["BMP"].tobytes() == want.tobytes()
    assert set(decoded) == {"GIF", "BMP", "TIFF", "JPEG"}


@pytest.fixture
def csv_limit():
    """Python's own limit of a cell; reading items raises it for the whole process."""
    raised = csv.field_size_limit(2**17)
    yield
    csv.field_size_limit(raised)


@pytest.mark.parametrize("cell", ['"no end', f'"{"a" * 200_000}"'])
def test_a_cell_that_csv_cannot_read_is_told_with_its_line(cell, tmp_path, csv_limit):
    path = tmp_path / "t.csv"
    path.write_text(f"image,caption\n1.png,a\n2.png,{cell}\n")
    with refused("in the row that begins in line 3: mend the quotes"):
        records(TableBuilder(path))


def test_bad_rows_are_listed_by_line_and_counted(tmp_path, capsys):
    for n in range(1, 5):
        (tmp_path / f"{n}.png").write_bytes(picture(n))
    (tmp_path / "cut.png").write_bytes(picture(9)[:200])
    path = tmp_path / "t.csv"
    bad = {  # lines counted by hand: the second row has a caption of two lines
        6: ("gone.png,a", "image missing: gone.png"),
        7: ("cut.png,b", r"image broken: cut.png \(.+\)"),
        8: ("3.png,", "no caption: 3.png"),
        9: ("3.png,c,d", "unreadable row: 3 cells for 2 columns"),
        10: ("1.png,one", f"repeated row: line 2 of {path}"),
        11: (",e", "unreadable row: no image"),
    }
    good = 'image,caption\n1.png,one\n2.png,"two\nand two"\n\n'
    path.write_text(good + "".join(f"{text}\n" for text, _ in bad.values()) + "4.png,four")
    builder = TableBuilder(path)
    builder.build(tmp_path / "out", progress=False, max_left_out=0.5)
    lines = (tmp_path / "out/left_out.txt").read_text().splitlines()
    for line, (number, (_, reason)) in zip(lines, bad.items(), strict=True):
        assert re.fullmatch(f"line {number} of {path}: {reason}", line)
    printed = capsys.readouterr().err.splitlines()
    assert printed[1:] == [f"left out: {line}" for line in lines]
    manifest = read_manifest(tmp_path / "out")
    assert manifest.counts == {
        "captions": 3,
        "skipped: image broken": 1,
        "skipped: image missing": 1,
        "skipped: no caption": 1,
        "skipped: repeated row": 1,
        "skipped: unreadable row": 2,
    }
    with refused("at most 40% of 9 rows to be unusable, got 4, first line 6 of .*: image missing"):
        TableBuilder(path).build(tmp_path / "less", progress=False, max_left_out=0.4)
    assert not (tmp_path / "less").exists()


def test_a_long_list_is_cut_on_the_screen_alone(tmp_path, capsys):
    rows = [{"image": "1.png", "caption": "a"}, *({"image": "1.png"} for _ in range(30))]
    TableBuilder(table(tmp_path, *rows)).build(tmp_path / "out", progress=False)
    assert len((tmp_path / "out/left_out.txt").read_text().splitlines()) == 30
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 22
    assert printed[-1] == "left out: 10 more, see left_out.txt next to the shards"
