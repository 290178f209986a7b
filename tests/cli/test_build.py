import argparse
import inspect
import json
from pathlib import Path
from typing import cast

import pytest

from data_builders.corpora.frame_pairs import FramePairs
from data_builders.corpora.table import TableBuilder
from data_builders.shard_builder import Builder
from tests.data_builders.pictures import encoded
from tests.refusals import command_refused, refused
from vlmtune.cli.build import arguments, run
from vlmtune.cli.main import main
from vlmtune.cli.plugins import find, make
from vlmtune.data.schema import read_manifest

GRAPHS = [
    "--annotations=data_builders.corpora.gqa.GQAGraphs",
    "--annotations.path=graphs.json",
    "--annotations.images=.",
]


def options(corpus: str, overrides: list[str] | None = None) -> argparse.Namespace:
    given = {"config": None, "workers": 1, "part": None, "max_left_out": 0.02, "out": Path("out")}
    return argparse.Namespace(corpus=corpus, overrides=overrides or [], **given)


@pytest.mark.parametrize(
    ("corpus", "command"),
    [
        ("mine.csv", "vlmtune build table mine.csv --out FOLDER"),
        ("parquet", "vlmtune build table FILE --out FOLDER"),
        ("photos", "vlmtune build folder photos --out FOLDER"),
    ],
)
def test_data_in_the_place_of_a_builder_names_the_builder(corpus, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    with refused(f"expected a builder, got '{corpus}': use `{command}`"):
        run(options(corpus))


def test_a_folder_with_the_name_of_a_builder_is_no_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coco").mkdir()
    overrides = ["--path=none.json", "--images=coco"]
    with refused("none.json"):
        run(options("coco", overrides))


def test_help_lists_the_arguments_of_a_builder(capsys):
    assert main(["build", "table", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("usage: vlmtune build table --out OUT")
    # Some versions of Python write "--splits, --splits+ SPLITS".
    options = [line.split()[0].rstrip(",") for line in lines if line.startswith("  --")]
    names = [name for name in inspect.signature(TableBuilder).parameters if name != "self"]
    assert options == [f"--{name.replace('_', '-')}" for name in names]
    path = next(k for k, line in enumerate(lines) if line.startswith("  --path"))
    assert lines[path].index("The table") == len(lines[path + 1]) - len(lines[path + 1].lstrip())
    assert main(["build", "coco", "--help"]) == 0
    assert '  splits: ["train", "restval"]' in capsys.readouterr().out
    command_refused(capsys, ["build", "no_builder", "--help"], "Others: ar4t")


@pytest.mark.parametrize("part", ["youcook2", "gebc", "action_genome"])
@pytest.mark.parametrize("words", [["a.json"], ["--annotations=a.json"]])
def test_the_file_of_a_builder_is_its_first_word(part, words):
    source = find("builders", f"eqben_{part}")
    made = cast(FramePairs, make(Builder, source, arguments(source, None, words)))
    assert made.annotations == Path("a.json")


def test_the_compositions_of_the_rendered_world_are_excluded_of_no_other_corpus(
    tmp_path, monkeypatch, capsys
):
    """The plug-in's default `exclude` is of its default annotations."""
    monkeypatch.chdir(tmp_path)
    objects = {"1": {"name": "cup", "attributes": ["red"]}}
    Path("graphs.json").write_text(json.dumps({"5": {"objects": objects}}))
    Path("5.jpg").write_bytes(encoded())
    reader = [*GRAPHS, "--multi=0"]
    assert main(["build", "cola", *reader, "--out", "without"]) == 0, capsys.readouterr().err
    exclude = Path("data/scenes/compositions.json")
    exclude.parent.mkdir(parents=True)
    exclude.write_text('{"unseen": [["red", "cup"]]}')
    assert main(["build", "cola", *reader, "--out", "with"]) == 0, capsys.readouterr().err
    for folder in ("without", "with"):
        manifest = read_manifest(Path(folder))
        assert manifest.arguments["exclude"] is None
        assert manifest.counts["queries: true"] == 1
    with refused("expected records from ColaBuilder, got none"):
        run(options("cola", [*reader, f"--exclude={exclude}"]))


def test_a_missing_list_of_compositions_says_how_to_go_without(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = "expected a composition list at data/scenes/compositions.json, got no such file: "
    advice = "run `vlmtune build scenes --out data/scenes` or correct the path"
    for corpus in ("cola", "cola_pairs", "descriptions"):
        with refused(f"{line}{advice}, or pass --exclude null"):
            run(options(corpus))
    for corpus in ("cola_split", "regions", "statements"):
        with refused(f"got No such file or directory: {advice}"):
            run(options(corpus))
    with refused("run .vlmtune download coco. or correct the path"):
        run(options("coco"))


def test_queries_are_counted_beside_the_papers(tmp_path, monkeypatch, capsys):
    """Two images state three queries, two of them the same."""
    monkeypatch.chdir(tmp_path)
    cup, plate = ({"name": n, "attributes": ["red"]} for n in ("cup", "plate"))
    graphs = {"5": {"objects": {"1": cup, "2": plate}}, "6": {"objects": {"1": cup}}}
    Path("graphs.json").write_text(json.dumps(graphs))
    for number in graphs:
        Path(f"{number}.jpg").write_bytes(encoded())
    words = [*GRAPHS, "--multi=0", "--single=9"]
    assert main(["build", "cola", *words, "--out", "out"]) == 0
    line, paper = capsys.readouterr().out.splitlines()
    assert "queries: distinct 2" in line
    assert "queries: true 3" in line
    assert line.endswith(", 1.5 queries an image")
    assert paper == "paper: 27,078 distinct queries, 450K pairs, 67K images, 6.7 an image"
