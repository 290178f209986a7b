"""`vlmtune leaderboard`: a killed run continues, and only what changed is measured again."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import vlmtune
from tests.export.test_files import trained
from tests.tiny import cola_plugin, plugin, write_cola
from vlmtune.adapters import LinearProbe, MMAdapter
from vlmtune.benchmarks import ColaSingle, TableRetrieval
from vlmtune.cli import leaderboard, leaderboard_cost
from vlmtune.cli.evaluate import default_name
from vlmtune.cli.main import main
from vlmtune.export.files import save_export
from vlmtune.report.leaderboard import TWIN
from vlmtune.report.run_report import RunReport

FILES = ("leaderboard.html", "leaderboard.md", "leaderboard.csv")


@pytest.fixture
def models(tmp_path, model_folder, monkeypatch):
    """A frozen model and two exports over it, one dual and one joint."""
    monkeypatch.chdir(tmp_path)
    names = [str(model_folder)]
    for adapter in (LinearProbe(), MMAdapter(heads=2, hidden=1)):
        names.append(f"exports/{type(adapter).__name__}")
        save_export(names[-1], *trained(model_folder, adapter), provenance={"seconds": 75.0})
    return names


@pytest.fixture
def benchmarks(tmp_path):
    """A compositional benchmark and a retained one, which counts in two ways."""
    cola = write_cola(tmp_path / "cola")
    rows = ["image,caption"]
    for image, caption, *_ in json.loads(cola.read_text()):
        rows.append(f"{image},{caption}")
    (cola.parent / "captions.csv").write_text("\n".join(rows))
    arguments = {"path": str(cola.parent / "captions.csv"), "images": str(cola.parent)}
    retrieval = plugin("benchmarks.table_retrieval.TableRetrieval", **arguments, name="found")
    path = tmp_path / "benchmarks.yaml"
    path.write_text(json.dumps([cola_plugin(cola, name="tiny"), retrieval]))
    return path


def made(out: str, models: list[str], benchmarks: Path, *words: str) -> int:
    return main(["leaderboard", *models, "--benchmarks", str(benchmarks), "--out", out, *words])


def test_a_killed_leaderboard_continues_to_the_same_bytes(models, benchmarks, monkeypatch, capsys):
    (benchmarks.parent / "captions.txt").write_text("a red dog\na blue cube left of the dog\n")
    text_only = ("--text-only", "captions.txt")
    # Two folders measure the speed of a model twice.
    monkeypatch.setattr(leaderboard_cost, "_pairs_a_second", lambda *_: 1000.0)
    twice = [*models, models[1]]  # a model counts once
    assert made("whole", twice, benchmarks, *text_only) == 0
    save = RunReport.save
    saved = []

    def dying(report, path):
        if len(saved) == 4:
            raise KeyboardInterrupt
        saved.append(path)
        save(report, path)

    with monkeypatch.context() as patch:
        patch.setattr(RunReport, "save", dying)
        assert made("killed", models, benchmarks, *text_only) == 130
    assert not Path("killed/leaderboard.html").exists()
    capsys.readouterr()
    assert made("killed", models, benchmarks, *text_only) == 0
    told = capsys.readouterr().out
    assert "LinearProbe: 1 measured, 2 to measure" in told
    assert "MMAdapter: 0 measured, 3 to measure" in told
    for name in FILES:
        assert Path("killed", name).read_bytes() == Path("whole", name).read_bytes()
    assert made("killed", models, benchmarks, *text_only) == 0
    assert ", 0 to measure" in capsys.readouterr().out


def test_other_weights_and_other_items_are_measured_again(models, benchmarks, capsys):
    models = models[:2]
    assert made("out", models, benchmarks) == 0
    before = Path("out/leaderboard.csv").read_text()
    weights = Path(models[1], "adapter.safetensors")
    torch.manual_seed(0)
    changed = {name: value + torch.randn_like(value) for name, value in load_file(weights).items()}
    config = Path(models[1], "adapter_config.json")
    content = json.loads(config.read_text())
    content.pop("weights_sha256")
    config.write_text(json.dumps(content))
    save_file(changed, weights)
    capsys.readouterr()
    assert made("out", models, benchmarks) == 0
    told = capsys.readouterr().out
    assert told.count(": 3 measured, 0 to measure") == 1
    assert "LinearProbe: 0 measured, 3 to measure" in told
    assert Path("out/leaderboard.csv").read_text() != before
    # Both benchmarks show this image, whose name stays.
    image = benchmarks.parent / "cola/red-green-dog.png"
    image.write_bytes((benchmarks.parent / "cola/red-green-cube.png").read_bytes())
    assert made("out", models, benchmarks) == 0
    assert capsys.readouterr().out.count(": 0 measured, 3 to measure") == 2


def test_each_of_many_labels_is_among_the_items(tmp_path):
    """PyTorch writes tensors of more than 1,000 numbers without those in the middle."""
    queries = [f"cube {i}" for i in range(600)]
    digests = set()
    for value in (0, 1):
        flags = [1] * 600
        flags[300] = value
        Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
        Image.new("RGB", (4, 4), "red").save(tmp_path / "b.png")
        data = [["a.png", None, flags, [1] * 600], ["b.png", None, [0] * 600, [1] * 600]]
        (tmp_path / "queries.json").write_text(json.dumps({"labels": queries, "data": data}))
        benchmark = ColaSingle(str(tmp_path / "queries.json"), str(tmp_path))
        benchmark.load()
        digests.add(leaderboard.items_digest(benchmark, {}))
    assert len(digests) == 2


def test_a_misspelt_model_is_found_before_any_is_measured(models, benchmarks, capsys):
    assert made("out", [*models, "ViT-B-23:openai"], benchmarks) == 2
    told = capsys.readouterr()
    assert "ViT-B-23" in told.err
    assert "to measure" not in told.out


def test_the_files_hold_gains_costs_and_both_conventions(models, benchmarks):
    assert made("out", models, benchmarks) == 0
    with Path("out/leaderboard.csv").open(newline="") as file:
        first, probe, joint = csv.DictReader(file)
    assert [first["trained_weights"], first["gained"], first["bytes_an_image"]] == ["0", "", "64"]
    gain = float(probe["tiny accuracy"]) - float(first["tiny accuracy"])
    assert float(probe["gained"]) == pytest.approx(gain)
    assert int(joint["bytes_an_image"]) > int(probe["bytes_an_image"]) == 4 * 16
    assert float(probe["pairs_a_second"]) > float(joint["pairs_a_second"]) > 0
    page = Path("out/leaderboard.html").read_bytes()
    assert made("out", models, benchmarks) == 0
    assert Path("out/leaderboard.html").read_bytes() == page
    assert float(probe["tiny accuracy low"]) < float(probe["tiny accuracy high"])
    assert (first["training_seconds"], probe["training_seconds"]) == ("", "75.0")
    assert "found (reference) text_to_image_recall@1" in first
    # Gains count by the strict convention, so the other's table has none.
    strict, reference = Path("out/leaderboard.md").read_text().split("## reference convention")
    assert "| model | gained | retained | trained weights |" in strict
    assert "| model | trained weights |" in reference
    page = Path("out/leaderboard.html").read_text()
    assert page.count('href="#pair-1-3"') == 2
    assert page.count("MM-Adapter") == 1  # a number of Cola's paper, of other items than these nine
    assert "https://" not in page.replace("https://github.com", "")
    # Exports of one name are told apart by their folders.
    shutil.copytree(models[1], "others/LinearProbe")
    assert made("out", [*models[:2], "others/LinearProbe"], benchmarks) == 0
    with Path("out/leaderboard.csv").open(newline="") as file:
        _, *names = (line["model"] for line in csv.DictReader(file))
    assert names == ["exports/LinearProbe", "others/LinearProbe"]


def test_a_benchmark_that_counts_as_published_has_no_twin():
    arguments = {"path": "a.csv", "images": "images"}
    strict, published = (
        TableRetrieval(**arguments, name=name, convention=name) for name in ("strict", "reference")
    )
    names = [one.name for one in leaderboard.with_twins([strict, published])]
    assert names == ["strict", f"strict{TWIN}", "reference"]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("exports/lr0.01", "lr0.01"),
        ("llava-hf/llava-1.5-7b-hf", "llava-1.5-7b-hf"),
        ("configs/plugins/models/mine.yaml", "mine"),
        ("ViT-B-32-quickgelu:weights/negclip.v2.pt", "negclip.v2"),
        (".", "."),
    ],
)
def test_a_name_ends_at_the_ending_of_a_file_alone(model_folder, given, name):
    assert default_name(vlmtune.load(model_folder, device="cpu"), given) == name


def test_the_speed_is_of_a_caption_that_the_model_can_read(tmp_path):
    model = vlmtune.load("published:scenes/mm-adapter", device="cpu")
    unknown = ["a zebra"]  # the small CLIP has a vocabulary of its own
    cost = leaderboard_cost.cost_of(model, [*unknown, "a red cube"], tmp_path / "cost.json")
    assert cost.pairs_a_second is not None
    assert leaderboard_cost.cost_of(model, unknown, tmp_path / "cost.json") == cost  # kept
    cost = leaderboard_cost.cost_of(model, unknown, tmp_path / "other.json")
    assert cost.pairs_a_second is None
    cost = leaderboard_cost.cost_of(model, ["a red cube"], tmp_path / "other.json")
    assert cost.pairs_a_second is not None  # other benchmarks, which it can read


def test_a_run_is_its_newest_checkpoint(tmp_path):
    assert leaderboard.newest_of_run("ViT-B-32:openai") == "ViT-B-32:openai"
    (tmp_path / "checkpoints").mkdir()
    last = tmp_path / "checkpoints/last.ckpt"
    last.write_bytes(b"")
    assert leaderboard.newest_of_run(str(tmp_path)) == str(last)
    assert leaderboard.weights_options(str(last), None, "RN50")["architecture"] is None
    weights = last.rename(tmp_path / "weights.pt")
    assert leaderboard.weights_options(str(weights), None, "RN50")["architecture"] == "RN50"
