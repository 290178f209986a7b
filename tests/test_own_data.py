"""docs/own-data.md: its script, all of its commands with what they print, and the first four."""

import csv
import json
import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from PIL import Image

from tests.runs import QUIET
from tests.tiny import write_arrow
from vlmtune.cli.main import main
from vlmtune.cli.plugins import make_benchmarks
from vlmtune.data.table_rows import GUESSES

pytestmark = QUIET
PAGE = (Path(__file__).parents[1] / "docs/own-data.md").read_text(encoding="utf-8")
(SCRIPT,) = re.findall(r"<!-- pictures -->\n```python\n(.*?)```", PAGE, re.DOTALL)


def transcript() -> list[tuple[list[str], list[str]]]:
    """Each command that the page shows, with the lines that it prints."""
    steps: list[tuple[list[str], list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append((shlex.split(line[2:]), []))
            else:
                steps[-1][1].append(line)
    return steps


COMMANDS = [(words[1:], lines) for words, lines in transcript()]
BUILDS = [(words, lines) for words, lines in COMMANDS if words[0] == "build"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 200 pictures of the page in all of its formats."""
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile(SCRIPT, "own-data.md", "exec"), {})
        write_formats(list(csv.DictReader(Path("mine.csv").read_text().splitlines())))
    return folder


def write_formats(rows: list[dict[str, str]]) -> None:
    for name in ("pictures", "benchmark"):
        Path(name).mkdir()
    names = [Path(row["path"]).name for row in rows]
    for name, row in zip(names, rows, strict=True):
        shutil.copy(row["path"], Path("pictures", name))
        Path("pictures", name).with_suffix(".txt").write_text(row["caption"])
    own: dict[str, list[dict]] = {"images": [], "annotations": []}
    karpathy = []
    for number, (name, row) in enumerate(zip(names, rows, strict=True)):
        caption = row["caption"]
        own["images"].append({"id": number, "file_name": name})
        own["annotations"].append({"image_id": number, "caption": caption})
        sentences = [{"raw": caption}]
        karpathy.append({"filename": name, "split": row["split"], "sentences": sentences})
    Path("captions_mine.json").write_text(json.dumps(own))
    Path("karpathy.json").write_text(json.dumps({"images": karpathy}))
    (bad,) = re.findall(r"```text\n(photos/gone.*?)```", PAGE, re.DOTALL)
    Path("messy.csv").write_text(Path("photos.csv").read_text() + bad)
    Path("cut.png").write_bytes(Path("photos/002.png").read_bytes()[:100])
    shutil.copy("photos/001.png", "benchmark/copy.png")
    with Image.open("photos/002.png") as picture:
        picture.resize((200, 200)).save("benchmark/scaled.jpg")
    if find_spec("pyarrow"):
        write_dataset(rows)


def write_dataset(rows: list[dict[str, str]]) -> None:
    """A DatasetDict as `save_to_disk` lays it out."""
    Path("dataset").mkdir()
    Path("dataset/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for split in ("train", "test"):
        kept = []
        for row in (row for row in rows if row["split"] == split):
            image = {"bytes": Path(row["path"]).read_bytes(), "path": row["path"]}
            negative = row["hard_negative_caption"]
            kept.append({"image": image, "caption": [row["caption"]], "hard_negative": negative})
        write_arrow(Path("dataset", split), kept)


def test_the_page_shows_every_format():
    assert {words[1] for words, _ in BUILDS} == {"table", "folder", "coco", "karpathy"}


@pytest.mark.parametrize(("words", "lines"), BUILDS, ids=lambda x: " ".join(x)[:50])
def test_a_build_prints_what_the_page_says(words, lines, pictures, monkeypatch, capsys):
    if words[2] == "dataset" and not find_spec("pyarrow"):
        pytest.skip("pyarrow is not installed")
    monkeypatch.chdir(pictures)
    assert main(words) == 0
    printed = capsys.readouterr()
    assert (printed.err + printed.out).splitlines() == lines


def test_the_training_of_the_page_runs_and_is_measured(pictures, tmp_path, monkeypatch, capsys):
    """Fit, evaluate and export as the page does, in two steps; numbers depend on the steps."""
    folder = tmp_path / "own"
    shutil.copytree(pictures, folder, ignore=shutil.ignore_patterns("shards*", "runs", "exports"))
    monkeypatch.chdir(folder)
    config, _ = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    Path("mine.yaml").write_text(config)
    rest = [(words, lines) for words, lines in COMMANDS if words[0] != "build"]
    assert [words[0] for words, _ in rest] == ["fit", "evaluate", "export", "evaluate"]
    assert main(BUILDS[0][0]) == 0
    capsys.readouterr()
    for words, lines in rest:
        short = ["--trainer.max_steps", "2", "--trainer.accelerator", "cpu"]
        added = short if words[0] == "fit" else []
        assert main([*words, *added]) == 0, capsys.readouterr().err
        printed = capsys.readouterr()
        assert shape(printed.err + printed.out) == shape("\n".join(lines))


def shape(printed: str) -> list[str]:
    """The lines of a command in any order, without numbers, hashes, widths and steps on the way."""
    lines = [line for line in printed.splitlines() if not re.match(r"step \d+:|weights of", line)]
    plain = [re.sub(r"-[0-9a-f]{16}\b|[ \-|]+", " ", line).strip() for line in lines]
    return sorted(re.sub(r"[\d.]+", "0", line) for line in plain if line)


def test_the_benchmarks_of_the_page_can_be_made(pictures, monkeypatch):
    monkeypatch.chdir(pictures)
    run, alone = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
    (listed,) = run["trainer"]["callbacks"][0]["init_args"]["benchmarks"]
    for spec, count in ((listed, 40), (alone, 200)):
        (made,) = make_benchmarks([json.dumps(spec)])
        assert len(made.read()) == count
    (made,) = make_benchmarks(["mine.csv"])
    assert len(made.read()) == 40


def test_the_page_names_guesses_that_are_made():
    for role in ("image", "negative_image", "id", "split"):
        (listed,) = re.findall(rf"^\| {role} \| (.*) \|$", PAGE, re.MULTILINE)
        assert set(listed.split(", ")) <= set(GUESSES[role])


def test_four_commands_lead_from_a_table_to_a_search(pictures, monkeypatch, capsys):
    pytest.importorskip("faiss", reason="faiss is not installed")
    monkeypatch.chdir(pictures)
    monkeypatch.setenv("HOME", str(pictures / "home"))
    (block,) = re.findall(r"<!-- four -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    commands = [shlex.split(line)[1:] for line in block.splitlines()]
    assert [words[0] for words in commands] == ["fit", "export", "index", "search"]
    for words in commands:
        short = ["--trainer.max_steps", "3", "--trainer.accelerator", "cpu"]
        assert main([*words, *(short if words[0] == "fit" else [])]) == 0
    printed = capsys.readouterr().out
    assert "weights of step 3" in printed
    assert "runs/index: 200 images" in printed
    found = re.findall(r"photos/\d{3}\.png +\| +(-?[\d.]+)", printed)
    assert len(found) == 5
    assert sorted(map(float, found), reverse=True) == list(map(float, found))
