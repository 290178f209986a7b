"""`vlmtune probe`, from a folder of images to its report."""

import json
import shutil

import pytest
import torch
from PIL import Image

from tests.backbones import hf_models
from tests.refusals import command_output, command_refused
from tests.tiny import halves
from vlmtune.adapters.full_finetuning import FullFineTuning
from vlmtune.cli import plugins
from vlmtune.errors import UserError
from vlmtune.export.files import save_export
from vlmtune.model import load
from vlmtune.probing.categories import STYLES, categories
from vlmtune.report.run_report import RunReport


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of two classes in two splits."""
    folder = tmp_path_factory.mktemp("photos")
    for i in range(12):
        left, right = (("red", "green"), ("blue", "red"))[i % 2]
        path = folder / ("train" if i < 8 else "test") / left / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        halves(left, right, i).save(path)
    return folder


def run(capsys, *words):
    return command_output(capsys, words)


def save_tuned(folder, model_folder, step):
    """Writes an export whose image tower was moved."""
    model, adapter = load(str(model_folder), device="cpu"), FullFineTuning()
    adapter.attach(model.backbone)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.backbone.model.visual.parameters():
            parameter.add_(step * torch.randn(parameter.shape, generator=generator))
    save_export(folder, model.backbone, adapter, provenance={})


def test_a_folder_is_probed(photos, model_folder, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["probe", "--model", model_folder, "--images", photos, "--out", out, "--device", "cpu"]
    words += ["--side", 32, "--steps", 3, "--runs", 2, "--widths", 0, 1024]
    printed, _ = run(capsys, *words)
    assert f"tables: {out / 'tables.md'}" in printed
    report = RunReport.load(out / "report.json")
    names = [result.benchmark for result in report.results]
    probes = ["linear/transformation", "mlp-1024/transformation", "mlp-1024/semantic"]
    probes.append("mlp-1024/2-head")
    assert names == [f"probe_{task}/{x}" for task in ("fine", "categories") for x in probes]
    fine = report.metric("probe_fine/mlp-1024/2-head", "transformation_accuracy")
    assert (fine.n, fine.chance) == (4 * 27, 1 / 27)
    coarse = report.metric("probe_categories/linear/transformation", "transformation_accuracy")
    assert (coarse.n, coarse.chance) == (4 * 9, 1 / 9)
    semantic = report.metric("probe_fine/mlp-1024/semantic", "obfuscated_semantic_accuracy")
    assert (semantic.n, semantic.chance) == (4 * 26, 0.5)
    assert [len(names.split(",")) for names, _ in report.not_run] == [4, 13]
    tables = (out / "tables.md").read_text()
    assert all(f"Table {i}:" in tables for i in (1, 2, 4, 5, 6))
    assert "Table 3:" not in tables  # no width of 2,048 is among them
    value = f"{100 * fine.value:.2f}"
    assert value in tables
    assert row(tables, "style_transfer")[1:] == ["—", "not run"]  # Table 5
    for name, held_out in STYLES.items():
        assert row(tables, f"{name}{' *' * held_out}")[1:] == ["—", "not run"]  # Table 6
    assert row(tables.partition("Table 2")[0], model_folder.stem)[-1] == "not run"  # Table 1
    tested = report.results[4].metrics
    groups = [one.members for one in categories().runnable().classes if len(one.members) > 1]
    for member in [x for members in groups for x in members]:
        metric = tested.get(f"transformation/{member.name}")
        cells = row(tables, f"{member.name}{' *' * member.held_out}")
        assert cells[1] == str(metric.n if metric else 0)
        assert (cells[2] == "—") == (metric is None)
    content = json.loads((out / "probe.json").read_text())
    assert len(content) == 8
    for one in content:
        assert all(len(runs) == 2 for runs in one["runs"].values())
        if one["confusion"]:
            sums = [sum(row) for row in one["confusion"]]
            assert sums == pytest.approx([1] * len(one["classes"]))
    for task in ("fine", "categories"):
        with Image.open(out / f"confusion_{task}.png") as figure:
            assert min(figure.size) > 300
    assert (out / "report.html").is_file()
    # Again, with one of its probes: nothing is encoded, and the numbers stay.
    (stored,) = (out / "features").glob("*/values.bin")
    before = stored.stat().st_mtime_ns
    _, err = run(capsys, *words[:-2], 0)
    assert stored.stat().st_mtime_ns == before
    assert "Storing" not in err
    again = RunReport.load(out / "report.json")
    name = "probe_categories/linear/transformation"
    assert again.metric(name, "transformation_accuracy") == coarse


@pytest.mark.slow
def test_a_model_without_texts_is_probed_and_refused_where_texts_are_read(photos, tmp_path, capsys):
    folder = hf_models.write_timm(tmp_path / "timm")
    words = ["--images", photos, "--out", tmp_path / "out", "--transformations", "fine"]
    words += ["--side", 32, "--steps", 2, "--runs", 1, "--widths", 0, "--layer", "class-2"]
    run(capsys, "probe", "--model", f"timm:{folder}", *words)
    report = RunReport.load(tmp_path / "out/report.json")
    assert report.provenance.model["backbone"]["class_path"].endswith("TimmImage")
    (image, *_) = sorted(photos.rglob("*.png"))
    score = ["score", f"timm:{folder}", image, "--text", "a dog"]
    (_,) = command_refused(capsys, score, "only reads images: use it with vlmtune probe")


@pytest.mark.slow
def test_an_adapted_model_is_probed_beside_its_original(photos, model_folder, tmp_path, capsys):
    save_tuned(tmp_path / "tuned", model_folder, 0.05)
    out = tmp_path / "out"
    words = ["probe", "--images", photos, "--out", out, "--side", 32, "--steps", 2, "--runs", 2]
    words += ["--widths", 0, "--transformations", "fine", "--device", "cpu", "--frozen"]
    words += ["--layer", "pooled", "before-projection"]
    run(capsys, *words, "--model", tmp_path / "tuned")
    names = ["tuned, frozen", "tuned"]
    names += [f"{name}, before-projection" for name in names]
    tables = (out / "tables.md").read_text()
    for name in names:
        assert tables.count(f"| {name} | linear | ") == 1
    assert [x for x in tables.splitlines() if x.startswith("## What")] == [
        "## What adaptation changed: tuned",
        "## What adaptation changed: tuned, before-projection",
    ]
    folders = sorted(path.name for path in out.iterdir() if path.is_dir())
    layers = ["tuned", "tuned-before-projection", "tuned-frozen", "tuned-frozen-before-projection"]
    assert folders == ["features", *layers]
    frozen = RunReport.load(out / "tuned-frozen/report.json")
    assert frozen.provenance.fingerprint == load(str(model_folder)).backbone.fingerprint
    assert frozen.provenance.adapter == "zero-shot"
    page = (out / "report.html").read_text()
    assert all(name in page for name in names)
    assert "What the embedding still knows" in page
    trained = RunReport.load(out / "tuned/report.json").provenance.trainable_parameters
    assert trained > 0 == frozen.provenance.trainable_parameters


def test_packages_are_those_an_export_may_import(photos, tmp_path, monkeypatch, capsys):
    seen = []

    def stop(*given, packages, texts, **others):
        seen.append((given, packages, texts))
        raise UserError("expected nothing more: stop")

    monkeypatch.setattr(plugins, "load", stop)
    words = ["probe", "--model", "x", "--images", photos, "--out", tmp_path / "out"]
    command_refused(capsys, [*words, "--packages", "friend"], "stop")
    assert seen == [(("x", None), ["friend"], False)]


def row(text, *names):
    """The cells of the one line of a table that has these cells."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if set(names) <= set(cells):
            found.append(cells)
    (cells,) = found
    return cells


@pytest.mark.slow
def test_tables_and_report_show_one_difference(photos, model_folder, tmp_path, capsys):
    """Its interval counts runs as well as images, in both files."""
    save_tuned(tmp_path / "tuned", model_folder, 0.2)
    out = tmp_path / "out"
    words = ["--images", photos, "--out", out, "--side", 32, "--steps", 8, "--runs", 2]
    words += ["--widths", 0, 1024, "--device", "cpu", "--frozen", "--model", tmp_path / "tuned"]
    run(capsys, "probe", *words)
    tables, report = ((out / name).read_text() for name in ("tables.md", "report.md"))
    for task, probe, column in (
        ("fine", "linear/transformation", 2),
        ("fine", "mlp-1024/transformation", 2),
        ("categories", "linear/transformation", 2),
        ("fine", "mlp-1024/semantic", 3),
    ):
        cells = row(report, f"probe_{task}/{probe}", "tuned")
        shown = cells[2] if cells[3] == "–" else f"{cells[2]} [{cells[3]}]"
        assert row(tables, task, probe)[column] == shown
        assert cells[7].endswith("(runs and items)")
        if column == 2:
            assert cells[3] != "–"
            assert cells[8] in ("more sensitive", "less sensitive", "not significant")
    assert "## What the embedding still knows, change from tuned, frozen" in report
    assert "## Retained abilities, change from tuned, frozen" in report
    assert "Other seeds of the training were not tested" in report


def test_pictures_need_no_model(photos, tmp_path, capsys):
    """Images of five classes, each of one, are too few for probes and enough for a sheet."""
    (file,) = photos.glob("train/red/0.png")
    for kind in "abcde":
        (tmp_path / "few" / kind).mkdir(parents=True)
        shutil.copy(file, tmp_path / "few" / kind)
    for images in (photos, tmp_path / "few"):
        sheets = tmp_path / f"sheets of {images.name}"
        words = ["--images", images, "--pictures", sheets, "--side", 48]
        printed, _ = run(capsys, "probe", *words)
        assert sorted(path.name for path in sheets.iterdir()) == ["categories.jpg", "fine.jpg"]
        assert str(sheets / "fine.jpg") in printed


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "expected --model and --out, or only --pictures"),
        (["--model", "MODEL", "--out", "x", "--side", "4"], "--side: expected 8 or more, got 4"),
        (["--model", "MODEL", "--out", "x", "--layer", "top"], "as layer, got 'top'"),
        (["--model", "MODEL", "--out", "x", "--layer", "patches-9"], "layer -9"),
        (["--model", "MODEL", "--out", "x", "--runs", "0"], "--runs: expected 1 or more, got 0"),
        (["--model", "MODEL", "--out", "x", "--widths", "-1"], "got -1"),
        (["--model", "MODEL", "--out", "x", "--transformations", "coarse"], "invalid choice"),
    ],
)
def test_mistakes_are_one_line(words, reason, photos, model_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [model_folder if word == "MODEL" else word for word in words]
    (_,) = command_refused(capsys, ["probe", "--images", photos, *words], reason)
