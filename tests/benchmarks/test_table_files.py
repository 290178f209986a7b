import hashlib
import json
from pathlib import Path

import pytest

from data_builders.corpora.table import TableBuilder
from tests.benchmarks.models import by_name, check
from tests.refusals import refused
from tests.tiny import write_arrow
from vlmtune.benchmarks.files import write_image
from vlmtune.benchmarks.table_classification import TableClassification
from vlmtune.benchmarks.table_files import write_parquet
from vlmtune.benchmarks.table_multiple_choice import TableMultipleChoice
from vlmtune.benchmarks.table_pairs import TablePairs
from vlmtune.benchmarks.table_retrieval import TableRetrieval
from vlmtune.cli.main import main
from vlmtune.cli.plugins import make_benchmarks


def table(folder: Path, *rows: dict) -> str:
    for row in rows:
        for key in ("image", "image_neg"):
            if key in row:
                write_image(folder / row[key], *hashlib.sha256(row[key].encode()).digest()[:3])
    path = folder / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def scorer(scores: dict[tuple[str, str], float]):
    """Scores pairs by the name of the image and the caption."""
    return by_name(lambda *pair: scores[pair])


def test_pairs(tmp_path, capsys):
    rows = [
        {"image": "a.png", "image_neg": "b.png", "caption": "x", "negative": "y", "kind": "one"},
        {"image": "c.png", "image_neg": "d.png", "caption": ["z", "zz"], "negative": "y"},
    ]
    made = TablePairs(table(tmp_path, *rows), columns={"group": "kind"})
    scores = {("a.png", "x"): 3, ("a.png", "y"): 1, ("b.png", "x"): 2, ("b.png", "y"): 4}
    scores |= {("c.png", "z"): 1, ("c.png", "y"): 0, ("d.png", "z"): 2, ("d.png", "y"): 3}
    expected = {"text_accuracy": (1.0, 2), "image_accuracy": (0.5, 2)}  # z prefers d.png
    check(made.run(scorer(scores)), expected | {"group_accuracy/one": (1.0, 1)})
    assert "group from 'kind'" in capsys.readouterr().err


def test_each_caption_is_an_item_of_multiple_choice(tmp_path):
    rows = [
        {"image": "a.png", "caption": ["x", "xx"], "negative": ["n", "m"]},
        {"image": "b.png", "caption": "y", "negative": "n"},
    ]
    scores = {("a.png", "x"): 3, ("a.png", "xx"): 1, ("a.png", "n"): 0, ("a.png", "m"): 2}
    scores |= {("b.png", "y"): 1, ("b.png", "n"): 1}
    result = TableMultipleChoice(table(tmp_path, *rows)).run(scorer(scores))
    # xx loses to m, y ties
    check(result, {"accuracy": (1 / 3, 3, (1 / 3 + 1 / 3 + 1 / 2) / 3)})


def test_every_caption_of_classification_is_a_candidate(tmp_path):
    said = {"a.png": "a dog", "b.png": "a cat", "c.png": "a dog"}
    places = {"a.png": "in", "b.png": "in", "c.png": "out"}
    rows = [{"image": n, "caption": said[n], "background": places[n]} for n in said]
    made = TableClassification(table(tmp_path, *rows), columns={"group": "background"})
    assert sorted(made.items.texts) == ["a cat", "a dog"]
    # b is taken for a dog.
    look = by_name(lambda n, text: 0.5 if text != said[n] else 0.2 if n == "b.png" else 0.9)
    expected = {"accuracy": (2 / 3, 3, 1 / 2), "accuracy/in": (1 / 2,), "accuracy/out": (1.0,)}
    check(made.run(look), expected)
    rows[2]["background"] = ""
    blank = TableClassification(table(tmp_path, *rows), columns={"group": "background"})
    check(blank.run(look), {"accuracy/in": (1 / 2,), "accuracy/none": (1.0,)})
    alone = TableClassification(made.path).run(look)  # without groups there is no number of one
    assert alone.metrics.keys() == {"accuracy", "macro_accuracy"}
    assert [example.correct for example in alone.examples] == [True, False]  # one of each class
    with refused("expected one caption in line 1"):
        two = table(tmp_path, {"image": "a.png", "caption": ["a dog", "a cat"]})
        _ = TableClassification(two).items


def test_rows_of_one_image_are_one_image_of_retrieval(tmp_path):
    rows = [
        {"image": "a.png", "caption": "x"},
        {"image": "b.png", "caption": "y"},
        {"image": "a.png", "caption": ["x", "z"]},
    ]
    scores = dict.fromkeys(((i, t) for i in ("a.png", "b.png") for t in "xyz"), 0.0)
    scores |= {("a.png", "x"): 2.0, ("b.png", "y"): 1.0, ("b.png", "z"): 3.0}
    result = TableRetrieval(table(tmp_path, *rows)).run(scorer(scores))
    check(result, {"text_to_image_recall@1": (2 / 3, 3), "image_to_text_recall@1": (1 / 2,)})


@pytest.mark.parametrize(
    ("splits", "given", "measured"),
    [
        ("train val test", None, [2]),
        ("train val dev", None, [1]),
        ("train val test", ["train", "val"], [0, 1]),
    ],
)
def test_splits(splits, given, measured, tmp_path):
    rows = [
        {"image": f"{n}.png", "caption": f"c{n}", "negative": "n", "split": split}
        for n, split in enumerate(splits.split())
    ]
    made = TableMultipleChoice(table(tmp_path, *rows), splits=given)
    assert [item.candidates[0] for item in made.read()] == [f"c{n}" for n in measured]


def test_a_split_that_is_not_there(tmp_path):
    row = {"image": "a.png", "caption": "x", "negative": "n"}
    with refused(r"called test, val, .*got \['train'\]: name some"):
        TableMultipleChoice(table(tmp_path, {**row, "split": "train"})).read()
    with refused(r"a split of .*\['test'\], got \[\]: name some by `splits`"):
        TableMultipleChoice(table(tmp_path, row), splits=["test"]).read()


def test_what_a_builder_holds_out_is_measured(tmp_path):
    rows = [{"image": f"{n}.png", "caption": f"c{n}", "negative": "n"} for n in range(40)]
    path = table(tmp_path, *rows)
    groups = [group for group, _ in TableBuilder(Path(path), held_out=0.3).records()]
    trained = {text for group in groups for text in group.texts} - {"n"}
    made = TableMultipleChoice(path, held_out=0.3)
    measured = {item.candidates[0] for item in made.read()}
    assert len(measured) > 3
    assert trained | measured == {f"c{n}" for n in range(40)}
    assert not trained & measured
    (tmp_path / "3.png").unlink()
    with refused("3.png in .*line 4 of"):
        made.read()


@pytest.mark.parametrize(
    ("kind", "row", "message"),
    [
        (TablePairs, {"negative": "n"}, "a second image in line 1 of .*t.jsonl, got none"),
        (TablePairs, {"image_neg": "b.png"}, "a hard-negative caption in line 1"),
        (TableMultipleChoice, {}, "a hard-negative caption in line 1"),
        (TableRetrieval, {"caption": ""}, "a caption in line 1"),
    ],
)
def test_an_incomplete_row_is_named(kind, row, message, tmp_path):
    with refused(message):
        kind(table(tmp_path, {"image": "a.png", "caption": "x", **row})).read()


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"negative": "n", "image_neg": "b.png"}, TablePairs),
        ({"negative": "n"}, TableMultipleChoice),
        ({}, TableRetrieval),
    ],
)
def test_a_table_on_the_command_line_is_a_benchmark(row, kind, tmp_path):
    path = table(tmp_path, {"image": "a.png", "caption": "x", **row})
    (made,) = make_benchmarks([path])
    assert (type(made), made.name, made.path) == (kind, "t", path)
    for name in (str(tmp_path / "none.csv"), "none.csv"):
        with refused(r"expected the table '.*none\.csv', there is no such file"):
            make_benchmarks([name])


@pytest.mark.parametrize("words", [["evaluate", "--model"], ["leaderboard", "--out", "page"]])
def test_options_of_a_table_on_the_command_line(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    path = table(tmp_path, {"image": "a.png", "said": "x", "wrong": "n"})
    (tmp_path / "a.png").rename(tmp_path / "photos/a.png")
    command = [*words, "gone", "--benchmarks", path]
    assert main(command) == 2
    assert "`columns.caption`; here its options begin with --table." in capsys.readouterr().err
    command += ["--table.columns.caption", "said", "--table.columns.negative=wrong"]
    assert main(command) == 2
    printed = capsys.readouterr().err
    assert "a.png" in printed
    assert "caption from 'said', negative from 'wrong'" in printed
    # The table is read before the model is looked for.
    assert main([*command, "--table.images", str(tmp_path / "photos")]) == 2
    assert "got 'gone'" in capsys.readouterr().err
    without_table = [*words, "gone", "--benchmarks", "aro"]
    assert main([*without_table, "--table.images", "photos"]) == 2
    assert "expected a known argument, got '--table.images=photos'" in capsys.readouterr().err
    assert main([*command, "--table.folder", "photos"]) == 2
    assert "'folder' is not accepted" in capsys.readouterr().err


def test_images_inside_a_table_are_written_once(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write_image(tmp_path / "a.png", 9, 9, 9)
    content = (tmp_path / "a.png").read_bytes()
    rows = [{"image": content, "caption": f"c{n}", "negative": "b"} for n in range(2)]
    write_parquet(tmp_path / "t.parquet", rows)
    made = TableMultipleChoice(str(tmp_path / "t.parquet"))
    made.load()
    (image,) = made.items.images
    assert image.path.read_bytes() == content
    assert [path for path in (tmp_path / "home").rglob("*") if path.is_file()] == [image.path]


def test_a_saved_dataset_on_the_command_line_is_a_benchmark(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    saved = tmp_path / "mine"
    write_arrow(saved / "test", [{"image": "a.png", "caption": "x", "negative": "y"}])
    (saved / "dataset_dict.json").write_text('{"splits": ["test"]}')
    (made,) = make_benchmarks([str(saved)])
    assert isinstance(made, TableMultipleChoice)
    assert made.name == "mine"
