"""`vlmtune fit --data`: what it takes for data, and tables that are built once."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.refusals import command_refused, refused
from tests.runs import QUIET
from tests.tiny import fit_config, halves, write_arrow
from vlmtune.cli.fit_data import _from_home, with_shards
from vlmtune.cli.main import main
from vlmtune.data.schema import read_manifest
from vlmtune.data.shards import ShardSet, read_headers

pytestmark = QUIET
ROW = {"image": "0.png", "caption": "a dog"}


@pytest.fixture
def table(tmp_path, monkeypatch) -> Path:
    """A table of four pictures, in an empty home folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    rows = ["image,caption,negative"]
    for number in range(4):
        halves("red", "blue", number).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,a red cube {'left ' * number},a blue cube")
    (tmp_path / "mine.csv").write_text("\n".join(rows))
    return tmp_path / "mine.csv"


def set_of(words: list[str]) -> ShardSet:
    (word,) = with_shards(words)
    (one,) = json.loads(word.removeprefix("--data.train="))
    return ShardSet(**one)


@pytest.mark.parametrize("config", ["mine.yaml", "vlmtune.data.ShardDataModule", "{a: 1}"])
def test_a_config_stays_a_config(config):
    assert with_shards([f"--data={config}", "--model", "lora"]) == [
        f"--data={config}",
        "--model",
        "lora",
    ]


@pytest.mark.parametrize("rows", [[ROW], {"7": ROW}])
def test_a_json_is_a_table_if_it_holds_rows(rows, table):
    Path("rows.json").write_text(json.dumps(rows))
    assert set_of(["--data", "rows.json"]).manifest.counts == {"captions": 1}
    Path("config.json").write_text(json.dumps({"train": [{"path": "shards"}]}))
    assert with_shards(["--data", "config.json"]) == ["--data", "config.json"]


def test_a_table_is_trained_on_and_built_once(table, model_folder, monkeypatch, capsys):
    config = fit_config(table.parent / "a", model_folder, Path("gone"), trainer={"max_steps": 1})
    words = ["fit", "--data", "mine.csv", "--config", str(config)]
    assert main(words) == 0, capsys.readouterr().err
    (folder,) = (table.parent / "home/.cache/vlmtune/tables").iterdir()
    line = f"built into {folder} (delete it to build anew): 4 groups of mine.csv\n"
    assert line in capsys.readouterr().err
    assert read_manifest(folder).counts == {"captions": 4, "hard negatives": 4}
    written = (folder / "manifest.json").stat().st_mtime_ns
    assert main(words) == 0
    printed = capsys.readouterr().err
    assert "mine.csv: image from 'image', caption from 'caption', negative from" in printed
    assert f"built before, in {folder}: 4 groups of mine.csv" in printed
    assert (folder / "manifest.json").stat().st_mtime_ns == written
    saved = (table.parent / "a/run/config.yaml").read_text()
    assert f"path: ~/.cache/vlmtune/tables/{folder.name}" in saved


@pytest.mark.parametrize("home", ["/", "/home/me"])  # containers may have the first one
def test_the_home_folder_is_not_in_a_config(home, monkeypatch):
    monkeypatch.setenv("HOME", home)
    assert _from_home(Path(home, ".cache/a")) == "~/.cache/a"


def test_another_content_or_option_is_another_build(table):
    first = set_of(["--data", "mine.csv"])
    assert set_of([f"--data={table}"]).manifest.records == 4
    held = set_of(["--data", "mine.csv", "--table.columns.negative", "null"])
    assert held.manifest.counts == {"captions": 4}
    with table.open("a") as file:
        file.write("\n0.png,a dog,a sphere")
    assert set_of(["--data", "mine.csv"]).manifest.counts["captions"] == 5
    assert first.manifest.counts["captions"] == 4
    # A picture that was drawn anew may keep its size.
    before = set_of(["--data", "mine.csv"])
    picture = table.with_name("0.png")
    os.utime(picture, ns=(0, picture.stat().st_mtime_ns + 1))
    assert set_of(["--data", "mine.csv"]).path != before.path


def test_folders_and_other_tables_are_data_too(table, shards, capsys):
    assert set_of(["--data", str(shards)]).manifest == read_manifest(shards)
    (table.parent / "mine.jsonl").write_text('{"image": "0.png", "caption": "a dog"}\n')
    assert set_of(["--data", "mine.jsonl"]).manifest.records == 1
    (table.parent / "0.txt").write_text("a dog\na cube")
    (table.parent / "mine.jsonl").unlink()
    pictures = set_of(["--data", ".", "--table.columns.caption=caption"])
    assert ": 1 group of ., skipped: no caption 3\n" in capsys.readouterr().err
    assert pictures.manifest.counts == {"captions": 2, "skipped: no caption": 3}
    both = with_shards(["--data", "mine.csv", "--data", str(shards)])
    assert len(json.loads(both[0].partition("=")[2])) == 2


@pytest.mark.skipif(not find_spec("pyarrow"), reason="pyarrow is not installed")
def test_a_saved_data_set_and_one_of_the_hub(table, hub, tmp_path):
    from pyarrow import Table, parquet

    rows = [{"image": {"bytes": (tmp_path / "0.png").read_bytes()}, "caption": "a dog"}]
    write_arrow(tmp_path / "saved", rows)
    assert set_of(["--data", "saved"]).manifest.counts == {"captions": 1}
    (tmp_path / "there").mkdir()
    for split in ("train", "test"):
        file = tmp_path / f"there/{split}-00000-of-00001.parquet"
        parquet.write_table(Table.from_pylist(rows), file)
        rows = [{**rows[0], "image": {"bytes": (tmp_path / "1.png").read_bytes()}}]
    hub("someone/pets", tmp_path / "there", "datasets")
    data = set_of(["--data", "hf://datasets/someone/pets"])
    assert data.manifest.counts == {"captions": 1, "skipped: another split": 1}
    with refused("a data set on the Hugging Face hub in .*someone/gone"):
        with_shards(["--data", "hf://datasets/someone/gone"])


def test_advice_names_the_options_of_fit(table, capsys):
    Path("a.csv").write_text("picture,caption\n0.png,a dog\n")
    line = "name it by `columns.image`; here its options begin with --table."
    command_refused(capsys, ["fit", "--data", "a.csv"], line)


def test_a_command_runs_where_it_is_typed(shards, table):
    command = f"pipe:cat {shards}/shard-{{000000..000001}}.tar"
    data = set_of(["--data", command])
    assert data.path.startswith("~/.cache/vlmtune/tars/")
    assert [group.key for _, group, _ in read_headers([data])] == [f"r{n}" for n in range(8)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "gone.csv"], "gone.csv, got No such file"),
        (["--data", "mine.cvs"], "got --data mine.cvs, which is missing"),
        (["--data", "gone"], "got --data gone, which is missing"),
        (["--data", "coco.json"], "the layout of COCO or Karpathy: use `vlmtune build coco`"),
        (["--data", "mine.csv", "--table.heldout", "0.1"], "did you mean 'held_out'"),
        (["--data", "gone.csv", "--table.max_left_out", "2"], "gone.csv, got No such file"),
    ],
)
def test_wrong_words(words, message, table):
    Path("coco.json").write_text(json.dumps({"images": [], "annotations": []}))
    with refused(message):
        with_shards(words)
