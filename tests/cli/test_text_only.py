import itertools
import json
from dataclasses import replace

import pytest
import torch

from tests.refusals import command_refused, refused
from tests.tiny import cola_plugin, write_cola
from vlmtune.benchmarks.pug_animals import PugAnimals
from vlmtune.cli import text_only as text_only_runs
from vlmtune.cli.main import main
from vlmtune.cli.text_only import TextOnly, captions
from vlmtune.data.shards import ShardSet, read_headers
from vlmtune.evaluation import ImageAveraged
from vlmtune.evaluation.text_only import FewestWords
from vlmtune.language.ngram import NGram
from vlmtune.model import load
from vlmtune.report.run_report import Provenance


@pytest.fixture
def scorer(model_folder):
    return load(model_folder, device="cpu").scorer()


@pytest.fixture
def provenance():
    return Provenance("ViT", "MMAdapter", {}, "f", "scenes", {}, {}, "c", "2026", 3, 9, 1.0)


@pytest.fixture
def text_only(tmp_path):
    path = tmp_path / "captions.txt"
    path.write_text("a red cube\na blue sphere\n")
    return TextOnly(path)


def test_captions_are_those_of_a_text_file_or_the_true_ones_of_shards(
    tmp_path, shards, monkeypatch
):
    (tmp_path / "some.txt").write_text("a dog\n\n  a cat on a sofa \n", "utf-8-sig")
    assert list(captions(tmp_path / "some.txt")) == ["a dog", "a cat on a sofa"]
    (tmp_path / "none.txt").write_text("\n")
    with refused("got none"):
        NGram().fit(captions(tmp_path / "none.txt"))
    wanted = []
    for _, group, _ in read_headers([ShardSet(str(shards))]):
        true = group.truth.any(dim=0).tolist()
        wanted += itertools.compress(group.texts, true)
    assert list(captions(shards)) == wanted
    first, *_ = read_headers([ShardSet(str(shards))])
    group = replace(first[1], texts=("a dog", "no dog"), truth=torch.tensor([[True, False]]))
    monkeypatch.setattr(text_only_runs, "read_headers", lambda sets: [("", group, 0)])
    assert list(captions(shards)) == ["a dog"]


@pytest.mark.parametrize("kind", ["absent", "binary", "empty folder", "table"])
def test_what_holds_no_captions_is_one_line(tmp_path, kind):
    path = tmp_path / ("x.csv" if kind == "table" else "x")
    if kind == "binary":
        path.write_bytes(b"\xff\xfe\x00\xd8")
    elif kind == "empty folder":
        path.mkdir()
    elif kind == "table":
        path.write_text("image,caption\na.jpg,a dog\n")
    with refused() as error:
        NGram().fit(captions(path))
    assert str(path) in str(error.value)


def test_both_text_only_runs_are_the_scores_of_the_benchmarks(cola, scorer, provenance, text_only):
    cola = cola("tiny")
    n_gram, shortest, averaged = text_only.runs([cola], scorer, provenance)
    assert n_gram.text_only
    assert averaged.text_only
    assert shortest.text_only
    assert shortest.results[0].metrics == cola.run(FewestWords()).metrics
    assert (shortest.provenance.backbone, shortest.provenance.model) == ("none", {})
    assert n_gram.results[0].metrics == cola.run(text_only.n_gram).metrics
    assert averaged.results[0].metrics == cola.run(ImageAveraged(scorer)).metrics
    # Which image is asked for makes no difference, so no caption prefers its image.
    assert averaged.results[0].metrics["accuracy"].value == 0.0
    assert n_gram.provenance.data == str(text_only.source)
    assert n_gram.provenance.trainable_parameters == 0
    assert averaged.provenance.adapter == "MMAdapter, image averaged"


def test_what_reads_embeddings_has_no_text_only_run(
    cola, scorer, provenance, text_only, tmp_path, capsys
):
    cola = cola("tiny")
    (tmp_path / "animals").mkdir()
    animals = PugAnimals.fixture(tmp_path / "animals")
    for run in text_only.runs([animals, cola], scorer, provenance):
        assert [result.benchmark for result in run.results] == ["tiny"]
        assert run.not_run == ()
    assert text_only.runs([animals], scorer, provenance) == []
    assert "no text-only runs" in capsys.readouterr().err


def test_evaluate_and_report_show_text_only_runs(model_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("a red cube\na blue sphere\n")
    spec = cola_plugin(write_cola(tmp_path / "cola"), name="tiny")
    (tmp_path / "tiny.yaml").write_text(json.dumps(spec))
    common = ["evaluate", "--model", str(model_folder), "--benchmarks", "tiny.yaml"]
    common += ["--device", "cpu"]
    for name in ("one", "two"):
        call = [*common, "--out", name, "--name", name, "--text-only", "words.txt"]
        assert main(call) == 0, capsys.readouterr().err
    assert {path.name for path in (tmp_path / "one").iterdir()} == {
        *("report.json", "report.md", "report.html"),
        *("text-only-n-gram.json", "text-only-fewest-words.json"),
        "text-only-image-averaged.json",
    }
    head = (tmp_path / "one" / "report.md").read_text().splitlines()[2]
    assert head.endswith(
        "| one | text-only (n-gram) | text-only (fewest words) | text-only (image averaged) |"
    )

    tables = ["--csv", "tables/all.csv", "--latex", "tables/all.tex"]
    assert main(["report", "one", "two", "--out", "both", *tables]) == 0, capsys.readouterr().err
    lines = (tmp_path / "both" / "report.md").read_text().splitlines()
    head = next(line for line in lines if line.startswith("|"))  # the finding stands before it
    # Both were made of the same captions and the same model: each text-only run stands once.
    names = [
        "one",
        "two",
        *(f"text-only ({name})" for name in ("fewest words", "image averaged", "n-gram")),
    ]
    assert head.endswith(f"| {' | '.join(names)} |")
    assert (tmp_path / "tables/all.csv").read_text().startswith("run,benchmark,")
    assert r"\toprule" in (tmp_path / "tables/all.tex").read_text()

    capsys.readouterr()
    assert main([*common, "--out", "one"]) == 0  # without text-only runs none are left
    assert "replaces the report of one: one/report.json" in capsys.readouterr().err
    assert not list((tmp_path / "one").glob("text-only-*"))
    command_refused(capsys, [*common, "--out", "new", "--text-only", "nowhere.txt"], "nowhere.txt")
    assert not (tmp_path / "new").exists()
