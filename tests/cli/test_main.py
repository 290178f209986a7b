import contextlib
import csv
import gc
import importlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest
import torch
from PIL import Image
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.cli import LightningArgumentParser
from pytorch_lightning.loggers import CSVLogger

import vlmtune
from tests.refusals import command_output
from tests.refusals import command_refused as refused
from tests.tiny import cola_plugin, fit_config, keeping, plugin, write_cola
from vlmtune.adapters.last_blocks import LastBlocks
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.cli.commands import command_parser
from vlmtune.cli.explain import explain
from vlmtune.cli.fit import AtomicCheckpoints, VlmtuneCLI
from vlmtune.cli.main import _command_module, main
from vlmtune.report.table import count
from vlmtune.training.module import AdaptationModule


class Falling(Callback):
    """Logs a number that falls with each step."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        pl_module.log("score", -float(trainer.global_step))


class NotInstalled(CSVLogger):
    """A logger without its package, as Lightning's say it."""

    def __init__(self):
        raise ModuleNotFoundError("Neither `one` nor `other` is available. Try pip install it")


class Uploading(CSVLogger):
    def __init__(self, save_dir: str, api_key: str, uri: str) -> None:
        super().__init__(save_dir, name="csv")


ROOT = Path(vlmtune.__file__).parent.parent
STEPS = ("max_steps", "max_epochs", "limit_train_batches")


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch, tmp_path_factory):
    """Each test works in a folder of its own."""
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory):
    """YAML of a benchmark of nine items."""
    path = write_cola(tmp_path_factory.mktemp("benchmark"))
    (path.parent / "tiny.yaml").write_text(json.dumps(cola_plugin(path, name="tiny")))
    return path.parent / "tiny.yaml"


@pytest.fixture(scope="module")
def write_config(tmp_path_factory, model_folder, shards, benchmark):
    """Returns a function that writes a fit config, plug-ins named by relative YAML paths."""

    def write(**changes):
        folder = tmp_path_factory.mktemp("configs")
        evaluation = {"benchmarks": ["../benchmark.yaml"], "name": "mine"}
        plugins = {
            "backbone": plugin("backbones.open_clip.OpenClip", model=str(model_folder)),
            "adapter": plugin("adapters.linear_probe.LinearProbe"),
            "objective": plugin("objectives.info_nce.InfoNCE"),
            "shards": plugin("data.shards.ShardSet", path=str(shards)),
            "evaluation": plugin("training.benchmark_callback.BenchmarkCallback", **evaluation),
        }
        (folder / "plugins").mkdir()
        for name, spec in plugins.items():
            (folder / "plugins" / f"{name}.yaml").write_text(json.dumps(spec))
        (folder / "benchmark.yaml").write_text(benchmark.read_text())
        sections = {
            "model": {
                "backbone": "plugins/backbone.yaml",
                "adapter": "plugins/adapter.yaml",
                "objectives": ["plugins/objective.yaml"],
                "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.01}},
            },
            "data": {"train": ["plugins/shards.yaml"], "val": ["plugins/shards.yaml"]},
            "trainer": {"max_steps": 2, "callbacks": ["plugins/evaluation.yaml"]},
        }
        changed = {name: {**sections.get(name, {}), **values} for name, values in changes.items()}
        return fit_config(folder, model_folder, shards, **{**sections, **changed})

    return write


@pytest.fixture(scope="module")
def config(write_config):
    return write_config()


HELP = """
import sys
from vlmtune.cli.main import main
for command in ([], ["fit"], ["validate"], ["test"], ["build"], ["evaluate"], ["export"],
                ["report"], ["score"], ["quickstart"], ["neighbours"], ["shuffles"],
                ["index"], ["search"], ["probe"]):
    assert main([*command, "--help"]) == 0, command
assert main(["--version"]) == 0
heavy = {"torch", "pytorch_lightning", "jsonargparse", "numpy", "rich", "open_clip"}
print(sorted(heavy & set(sys.modules)))
"""


def test_help_imports_nothing_heavy():
    command, options = [sys.executable, "-c", HELP], {"timeout": 60, "cwd": ROOT}
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [f"vlmtune {vlmtune.__version__}", "[]"]
    for text in ("--ckpt-path CKPT", "convert a corpus", "--benchmarks B [B ...]", "--overwrite"):
        assert text in done.stdout


@pytest.mark.parametrize(("chosen", "used"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_sleep_while_they_wait_unless_said_otherwise(chosen, used):
    """The variable is set before torch is imported, as OpenMP reads it once."""
    code = (
        "import os, sys\n"
        "from vlmtune.cli import main\n"
        "main.main = lambda: print('torch' in sys.modules, os.environ['OMP_WAIT_POLICY'])\n"
        "main.entry()\n"
    )
    given = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    given |= {"OMP_WAIT_POLICY": chosen} if chosen else {}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=given, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"False {used}\n"


def test_a_command_is_imported_without_a_search_for_garbage(monkeypatch):
    searched = []
    monkeypatch.setattr(importlib, "import_module", lambda _: searched.append(gc.isenabled()))
    _command_module("fit")
    assert (searched, gc.isenabled()) == ([False], True)


@pytest.fixture(scope="module")
def fitted(write_config):
    """Folder of a run of two steps, and what it printed (`out.txt`, `err.txt`)."""
    path = write_config()
    before = Path.cwd()
    os.chdir(path.parent.parent)  # paths are relative to the config, not to the working directory
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            assert main(["fit", "--config", str(path)]) == 0
    finally:
        os.chdir(before)
    (path.parent / "out.txt").write_text(out.getvalue())
    (path.parent / "err.txt").write_text(err.getvalue())
    return path.parent


def checkpoint(folder):
    (path,) = (folder / "run" / "checkpoints").glob("*.ckpt")
    return path


def test_fit_leaves_config_checkpoint_and_report(fitted):
    saved = (fitted / "run" / "config.yaml").read_text()
    assert "vlmtune.adapters.linear_probe.LinearProbe" in saved
    assert "use_distributed_sampler: false" in saved
    report = json.loads((fitted / "run" / "report.json").read_text())
    assert report["name"] == "mine"
    assert report["results"][0]["benchmark"] == "tiny"
    told = report["provenance"]["config"]["fit"]  # whatever can change a number
    assert told["model"]["optimizer"]["init_args"]["lr"] == 0.01
    assert (told["data"]["batch_size"], told["trainer"]["max_steps"]) == (4, 2)
    content = torch.load(checkpoint(fitted), weights_only=True)  # plain types only
    assert all(name.startswith("adapter.") for name in content["state_dict"])
    assert content["global_step"] == 2


def test_credentials_of_a_logger_are_in_no_file(write_config, tmp_path, capsys):
    secret = "hunter2"
    arguments = {"save_dir": str(tmp_path), "api_key": secret, "uri": f"https://u:{secret}@host/a"}
    logger = {"class_path": f"{__name__}.Uploading", "init_args": arguments}
    path = write_config(trainer={"max_steps": 2, "logger": [logger]})
    words = ["--trainer.default_root_dir", str(tmp_path / "run")]
    assert main(["fit", "--config", str(path), *words]) == 0, capsys.readouterr().err
    (saved,) = tmp_path.rglob("*.ckpt")
    assert main(["export", str(saved), "--out", str(tmp_path / "export")]) == 0
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {"config.yaml", "hparams.yaml", "report.json", "adapter_config.json"} <= {
        file.name for file in written
    }
    assert [file for file in written if secret.encode() in file.read_bytes()] == []
    assert "https://host/a" in (tmp_path / "export/adapter_config.json").read_text()


def test_one_seed_changes_weights_and_data(fitted, config, monkeypatch, tmp_path):
    """Unless the model has a seed of its own."""
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored afterwards
    runs = {"1": ["--seed_everything", "1"]}
    runs["own"] = ["--seed_everything", "1", "--model.seed", "0", "--data.seed", "0"]
    folders = {"0": fitted / "run"}
    for name, words in runs.items():
        folders[name] = tmp_path / name
        words += ["--trainer.default_root_dir", str(folders[name])]
        assert main(["fit", "--config", str(config), *words]) == 0
    seeds, weights = {}, {}
    for name, folder in folders.items():
        report = json.loads((folder / "report.json").read_text())
        seeds[name] = report["provenance"]["seed"]
        (file,) = folder.glob("**/*.ckpt")
        weights[name] = torch.load(file, weights_only=True)["state_dict"]
    assert seeds == {"0": 0, "1": 1, "own": 0}
    for name, equal in (("1", False), ("own", True)):
        same = [value.equal(weights[name][key]) for key, value in weights["0"].items()]
        assert all(same) == equal


def test_fit_says_what_matters_and_nothing_else(fitted):
    (start,) = (fitted / "err.txt").read_text().splitlines()
    assert start.startswith("vlmtune fit: LinearProbe on OpenClip, ")
    title, *rows, saved, advice = (fitted / "out.txt").read_text().splitlines()
    assert title == "weights of step 2, the last"
    (row,) = [row for row in rows if "tiny" in row]
    assert [cell.strip() for cell in row.split("|")[1:4]] == ["tiny", "accuracy ↑", "9"]
    assert len([row for row in rows if row.strip()]) == 3  # head, line, the primary metric
    path = saved.removeprefix("checkpoint: ").removesuffix(" (weights of step 2)")
    assert torch.load(path, weights_only=True)["global_step"] == 2
    assert advice == f"next: vlmtune export {path} --out FOLDER"


def test_the_advice_is_of_the_weights_in_the_table(write_config, tmp_path, capsys):
    """Of the number that the best checkpoint is kept by, the first step has the highest."""
    score = {"class_path": "tests.cli.test_main.Falling"}
    best = {"filename": "best", "monitor": "score", "mode": "max", "save_last": True}
    folder = tmp_path / "my runs"
    saving = keeping(**best, dirpath=str(folder), every_n_train_steps=1)
    path = write_config(trainer={"callbacks": ["plugins/evaluation.yaml", score, saving]})
    assert main(["fit", "--config", str(path)]) == 0, capsys.readouterr().err
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "weights of step 2, the last"
    assert lines[-3:] == [
        f"checkpoint: {folder / 'last.ckpt'} (weights of step 2)",
        f"best: {folder / 'best.ckpt'} (weights of step 1, score -1)",
        f"next: vlmtune export '{folder / 'last.ckpt'}' --out FOLDER",
    ]


def test_a_run_that_stops_early_says_why(write_config, shards, capsys):
    overlay = "configs/experiments/overlays/early_stopping.yaml"
    path = write_config(trainer={"max_steps": 9, "max_epochs": -1})
    words = ["fit", "--config", str(path), "--config", overlay]
    assert main([*words, "--data.val=null"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "expected val/accuracy, which EarlyStopping monitors, got no number, as val is" in line
    words += ["--data.val", json.dumps([{"path": str(shards)}]), "--trainer.val_check_interval=1"]
    # Without a learning rate nothing improves.
    words += ["--model.optimizer.init_args.lr=0", "--trainer.callbacks.EarlyStopping.patience=2"]
    assert main(words) == 0
    printed = capsys.readouterr()
    line = "vlmtune fit: stopped early at step 3: val/accuracy has not improved, checked 2 times"
    assert line in printed.err.splitlines()
    assert "best.ckpt" in printed.out
    # A run that ends by itself did not stop early.
    ends = ["--trainer.max_steps=1", "--trainer.callbacks.EarlyStopping.patience=0"]
    assert main([*words, *ends]) == 0
    assert "stopped early" not in capsys.readouterr().err


@pytest.mark.parametrize(("last", "best", "step"), [(True, 0, 3), ("link", 1, 2)])
def test_the_last_checkpoint_has_the_last_steps(last, best, step, write_config, tmp_path, capsys):
    """A link to the checkpoint of an earlier step is not written through."""
    every = {"save_top_k": best, "save_last": last, "every_n_train_steps": 2}
    saving = keeping(**every, dirpath=str(tmp_path))
    path = write_config(trainer={"callbacks": [saving], "max_steps": 3, "max_epochs": -1})
    assert main(["fit", "--config", str(path)]) == 0, capsys.readouterr().err
    line, _ = capsys.readouterr().out.splitlines()
    assert line == f"checkpoint: {tmp_path / 'last.ckpt'} (weights of step {step})"


def test_an_option_before_a_config_that_sets_it_is_named(config, capsys):
    words = ["fit", "--trainer.max_steps=1", "--model.seed=3", "--config", str(config)]
    assert main(words) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert line == (
        "vlmtune: warning: --trainer.max_steps is replaced by a config that comes after it, "
        f"{str(config)[:80]}: put --config first"
    )
    deep = config.with_name("deep.json")
    deep.write_text("[" * 10**5 + "]" * 10**5)
    words = ["fit", "--trainer.max_steps=1", "--config", str(deep)]
    refused(capsys, words, "aliases or nested lists that make more")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        *((f"{name}=0", f"--trainer.{name} is 0; raise it to train\n") for name in STEPS),
        ("accumulate_grad_batches=7", "of 7 accumulated batches, so its gradient is smaller"),
    ],
    ids=[*STEPS, "accumulate_grad_batches"],
)
def test_a_run_of_no_steps_or_too_few_batches_says_why(word, said, config, capsys):
    assert main(["fit", "--config", str(config), f"--trainer.{word}"]) == 0
    told = capsys.readouterr().err
    assert said in told
    assert ("vlmtune fit: nothing was trained: " in told) == word.endswith("=0")


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("--trainer.accumulate_grad_batches=-2", "from 1 to 4294967295, got -2"),
        ("--trainer.log_every_n_steps=-1", "from 0 to 4294967295, got -1"),
        ("--seed_everything=-1", "from 0 to 4294967295, got -1"),
        ("--model.seed=18446744073709551616", "from 0 to 4294967295, got 18446744073709551616"),
        ("--trainer.val_check_interval=0", "from 1 to 4294967295, got 0"),
    ],
)
def test_numbers_that_lightning_does_not_check_are_refused(word, line, config, capsys):
    wanted = f"expected {word.partition('=')[0]} {line}: choose another"
    refused(capsys, ["fit", "--config", config, word], wanted)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--model.adapter", "bottleneck"], "Bottleneck"),
        (["--model.adapter=bottleneck", "--trainer.callbacks.0.name=other"], "other"),
    ],
)
def test_a_report_never_names_an_adapter_that_was_not_trained(write_config, words, name):
    path = write_config()
    assert main(["fit", "--config", str(path), *words]) == 0
    report = json.loads((path.parent / "run" / "report.json").read_text())
    assert report["name"] == name


def resumed(fitted, folder, *words):
    """The words that go on with the fitted run in a folder of its own."""
    config, last = str(fitted / "fit.yaml"), str(checkpoint(fitted))
    where = ["--trainer.default_root_dir", str(folder)]
    return ["fit", "--config", config, "--ckpt_path", last, *where, *words]


def test_a_finished_run_says_that_nothing_was_left(fitted, tmp_path, capsys):
    finished = checkpoint(fitted)
    assert main(resumed(fitted, tmp_path)) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert f"nothing was left to train: {finished} is at step 2, the end of the run" in line


def test_the_config_is_replaced_whole_or_not_at_all(write_config, capsys, monkeypatch):
    """A run that is killed while it writes the config leaves the one that was there."""
    path = write_config()
    saved = path.parent / "run" / "config.yaml"
    saved.parent.mkdir()
    saved.write_text("of the run before")

    def killed(*arguments, **options):  # is called for what to write into the opened file
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LightningArgumentParser, "dump", killed)
        assert main(["fit", "--config", str(path)]) == 130
    assert saved.read_text() == "of the run before"
    assert main(["fit", "--config", str(path)]) == 0, capsys.readouterr().err
    assert "LinearProbe" in saved.read_text()
    assert not [file for file in saved.parent.iterdir() if ".part" in file.name]


def test_a_frozen_copy_is_no_part_of_the_model(write_config, model_folder, capsys):
    model = {"adapter": plugin("adapters.last_blocks.LastBlocks", image=1, text=1)}
    said = []
    for names in (["info_nce.InfoNCE"], ["info_nce.InfoNCE", "distillation.Distillation"]):
        objectives = [plugin(f"objectives.{name}") for name in names]
        path = write_config(model={**model, "objectives": objectives})
        assert main(["fit", "--config", str(path)]) == 0, capsys.readouterr().err
        said.append(capsys.readouterr().err.partition("parameters trained")[0])
    backbone, adapter = OpenClip(str(model_folder)), LastBlocks(1, 1)
    adapter.attach(backbone)
    own = [p for part in (backbone, adapter) for p in part.parameters()]
    trained = sum(p.numel() for p in own if p.requires_grad)
    whole = sum(p.numel() for p in own)
    assert said == [f"vlmtune fit: LastBlocks on OpenClip, {count(trained)} of {count(whole)} "] * 2


def test_resuming_goes_on_from_the_checkpoint(fitted, tmp_path, capsys):
    weights = torch.load(checkpoint(fitted), weights_only=True)["state_dict"]
    longer = resumed(fitted, tmp_path, "--trainer.max_steps=4")
    assert main(longer) == 0, capsys.readouterr().err
    start, numbers = capsys.readouterr().err.splitlines()
    assert start.startswith("vlmtune fit: ")
    assert numbers.startswith("step 3: tiny accuracy ")  # of the first epoch, before the end
    (last,) = tmp_path.glob("checkpoints/*step=4.ckpt")
    content = torch.load(last, weights_only=True)
    assert content["global_step"] == 4
    assert any(not value.equal(weights[name]) for name, value in content["state_dict"].items())


def test_a_run_leaves_its_metrics_as_a_table(write_config, capsys):
    trainer = {"logger": None, "log_every_n_steps": 1, "callbacks": []}
    path = write_config(trainer={"max_steps": 2, **trainer})
    run = path.parent / "run"

    def fit(*words):
        assert main(["fit", "--config", str(path), *words]) == 0, capsys.readouterr().err
        with (run / "metrics.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    rows = fit()
    for name in ("loss", "lr", "gradient_norm", "samples_per_second"):
        assert sum(bool(row[f"train/{name}"]) for row in rows) == 2, name
    first = str(checkpoint(path.parent))
    assert len(fit()) == len(rows)  # a new run has a table of its own
    longer = fit("--ckpt_path", first, "--trainer.max_steps=3")
    assert len(longer) > len(rows)  # one that resumes adds to it
    assert [float(row["train/loss"]) for row in longer if row["train/loss"]][:2] == [
        float(row["train/loss"]) for row in rows if row["train/loss"]
    ]
    written = {file.name for file in run.iterdir()}
    assert written == {"checkpoints", "config.yaml", "metrics.csv", "earlier_0"}
    assert {file.name for file in (run / "earlier_0").iterdir()} == written - {"earlier_0"}
    assert main(["validate", "--config", str(path)]) == 0
    (run / "within-budget.ckpt").touch()  # of this run, so that it moves with it
    assert main(["fit", "--config", str(path), "--trainer.logger=false"]) == 0
    assert {file.name for file in run.iterdir()} == {*written, "earlier_1"} - {"metrics.csv"}


def test_dotted_keys_of_sweep_agents(config, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(VlmtuneCLI, "_run_subcommand", lambda *_: None)
    monkeypatch.setattr(VlmtuneCLI, "after_instantiate_classes", lambda cli: seen.append(cli))
    arguments = ["--model.optimizer.init_args.lr=0.25", "--model.warmup=0.5", "--data.batch_size=2"]
    assert main(["fit", "--config", str(config), *arguments]) == 0
    (cli,) = seen
    optimizer = cli.model.make_optimizer([torch.nn.Parameter(torch.ones(1))])
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert (cli.model.warmup, cli.datamodule.batch_size) == (0.5, 2)
    assert cli.trainer.default_root_dir == str(config.parent / "run")
    assert isinstance(cli.trainer.strategy.checkpoint_io, AtomicCheckpoints)


@pytest.mark.parametrize("command", ["validate", "test"])
def test_measuring_a_checkpoint(fitted, capsys, command):
    saved = (fitted / "run" / "config.yaml").read_text()
    common = ["--config", str(fitted / "fit.yaml"), "--ckpt_path", str(checkpoint(fitted))]
    assert main([command, *common]) == 0, capsys.readouterr().err
    assert "tiny/accuracy" in capsys.readouterr().out
    assert (fitted / "run" / "config.yaml").read_text() == saved  # `fit` can read it again


@pytest.mark.parametrize(
    ("command", "more"), [("validate", " and data.val no shards"), ("test", "")]
)
def test_a_command_that_measures_nothing_says_so(write_config, capsys, command, more):
    path = write_config(trainer={"callbacks": []}, data={"val": None})
    assert main([command, "--config", str(path)]) == 0
    said = (
        f"vlmtune {command}: nothing is measured: trainer.callbacks has no BenchmarkCallback{more};"
    )
    assert said in capsys.readouterr().err


def test_export_then_score_evaluate_and_report(fitted, benchmark, pictures, tmp_path, capsys):
    out, run = tmp_path / "export", fitted / "run"
    arguments = ["export", checkpoint(fitted), "--out", out, "--report", run / "report.json"]
    assert main([str(x) for x in arguments]) == 0, capsys.readouterr().err
    assert "| tiny (v1) | **accuracy** ↑ |" in (out / "README.md").read_text()
    refused(capsys, arguments, "--overwrite")
    assert main([str(x) for x in [*arguments, "--overwrite"]]) == 0

    capsys.readouterr()
    captions = ["a [red] cube", "red"]  # brackets are no markup
    words = ["--text", captions[0], "--text", captions[1]]
    assert main(["score", str(out), *map(str, pictures), *words]) == 0
    *table, row, note = filter(str.strip, capsys.readouterr().out.splitlines())
    assert captions[0] in "\n".join(table)
    assert note.startswith("higher is better; * is the best caption of an image")
    last = row.strip("| ").split("|")
    want = vlmtune.load(out).score(pictures, captions)[-1].tolist()
    assert last[0].strip() == str(pictures[-1])
    assert [float(x.strip("* ")) for x in last[1:]] == pytest.approx(want, abs=1e-4)
    assert ["*" in x for x in last[1:]] == [x == max(want) for x in want]

    arguments = ["evaluate", "--model", out, "--benchmarks", benchmark, "--out", tmp_path / "mine"]
    arguments += ["--items", tmp_path / "mine/items.jsonl"]
    assert main([str(x) for x in [*arguments, "--device", "cpu"]]) == 0
    assert "| tiny " in capsys.readouterr().out
    written = {path.name for path in (tmp_path / "mine").iterdir()}
    assert written == {"report.json", "report.md", "report.html", "items.jsonl"}
    lines = [json.loads(x) for x in (tmp_path / "mine/items.jsonl").read_text().splitlines()]
    assert len(lines) == 9
    first = lines[0]
    want = vlmtune.load(out).score(first["files"], first["captions"]).flatten().tolist()
    assert [x for row in first["scores"] for x in row] == pytest.approx(want, abs=1e-4)
    trained, exported = (
        json.loads((folder / "report.json").read_text()) for folder in (run, tmp_path / "mine")
    )
    # An exported model scores what the run reported.
    metrics = exported["results"][0]["metrics"]
    for name, metric in trained["results"][0]["metrics"].items():
        assert metric["value"] == metrics[name]["value"]
    one, other = trained["provenance"], exported["provenance"]
    for key in ("data", "seed", "seconds", "trainable_parameters", "fingerprint", "model"):
        assert other[key] == one[key]
    assert other["data"]
    assert other["config"]["training"]["config"] == one["config"]
    assert other["config"]["training"]["commit"] == one["commit"]
    assert other["config"]["benchmarks"].keys() == one["config"]["benchmarks"].keys()

    assert main(["report", str(run), str(tmp_path / "mine"), "--out", str(tmp_path / "both")]) == 0
    heads = capsys.readouterr().out.splitlines()
    assert any(" mine |" in line and " export |" in line for line in heads)
    assert (tmp_path / "both" / "report.html").is_file()
    # The scores of an evaluation go onto the card, beside the facts of the training.
    arguments = ["export", checkpoint(fitted), "--out", out, "--report", tmp_path / "mine"]
    assert main([str(x) for x in [*arguments, "--overwrite"]]) == 0
    card = (out / "README.md").read_text()
    assert "| tiny (v1) | **accuracy** ↑ |" in card
    assert "- steps: 2" in card


def test_scores_of_other_weights_stay_off_the_card_and_another_run_is_refused(
    fitted, tmp_path, capsys
):
    """The report of a run is of its last step, which the best checkpoint need not be of."""
    report = json.loads((fitted / "run" / "report.json").read_text())
    report["provenance"]["config"]["steps"] = 7
    (tmp_path / "report.json").write_text(json.dumps(report))
    out = tmp_path / "export"
    arguments = ["export", checkpoint(fitted), "--out", out, "--report", tmp_path]
    assert main([str(x) for x in arguments]) == 0
    assert "it measured 7 steps, the checkpoint has 2" in capsys.readouterr().err
    assert "accuracy" not in (out / "README.md").read_text()
    assert json.loads((out / "adapter_config.json").read_text())["provenance"]["seed"] is not None
    report["provenance"]["config"]["steps"] = 2
    report["provenance"]["seed"] = 5
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert main([*map(str, arguments), "--overwrite"]) == 0
    assert "left out: it is of another run, with other seeds" in capsys.readouterr().err
    report["provenance"]["fingerprint"] = "beef"
    (tmp_path / "report.json").write_text(json.dumps(report))
    arguments[3] = "x"
    refused(capsys, arguments, "the report of the same run")
    assert not Path("x").exists()


def test_evaluate_measures_what_it_can(benchmark, model_folder, pictures, tmp_path, capsys):
    """A list, one of which is not there, and a table with a caption that is cut."""
    specs = [json.loads(benchmark.read_text()) for _ in range(2)]
    gone, again = specs
    gone["init_args"] |= {"name": "gone", "path": "nowhere.json"}
    again["init_args"]["name"] = "again"
    listed = benchmark.parent / "list.yaml"
    listed.write_text(json.dumps([gone, "tiny.yaml", again]))
    first, second, *_ = (path.name for path in pictures)
    rows = ["image,caption,negatives", f"{first},a red cube,dog", f"{second},{'red ' * 76},dog"]
    table = pictures[0].with_name("mine.csv")
    table.write_text("\n".join(rows))
    evaluate, out = ["evaluate", "--model", model_folder, "--benchmarks"], ["--out", tmp_path / "r"]
    options = ["--store", tmp_path / "store", "--name", "plain", "--device", "cpu"]
    printed, err = command_output(capsys, [*evaluate, listed, table, *out, *options])
    assert "not run: gone: expected a JSON list" in err
    assert "not run: gone of " in printed
    cut = "plain: captions are longer than the model reads and truncated: mine (1 of 3)"
    assert cut in printed
    report = json.loads((tmp_path / "r" / "report.json").read_text())
    assert [result["benchmark"] for result in report["results"]] == ["tiny", "again", "mine"]
    assert [name for name, _ in report["not_run"]] == ["gone"]
    assert (report["name"], report["provenance"]["adapter"]) == ("plain", "zero-shot")
    assert report["provenance"]["trainable_parameters"] == 0
    assert any((tmp_path / "store").iterdir())
    page = (tmp_path / "r" / "report.md").read_text()
    assert "nowhere.json" in page
    assert "truncated captions: 1 of 3" in page
    assert "nowhere.json" in (tmp_path / "r" / "report.html").read_text()
    refused(capsys, [*evaluate, benchmark, benchmark, *out], "'tiny' twice")


UNKNOWN = [
    (["--model.adaptr=x"], "did you mean 'model.adapter'?"),
    (["--model.adapter.init_args.rnk=2"], "'rnk' is not accepted"),
    (["--model.objectives=[nowhere.yaml]"], "'nowhere.yaml'"),
    (["--model.adapter=vlmtune.objectives.info_nce.InfoNCE"], "a subclass of Adapter"),
    (["--trainer.accelerator=abacus"], "a valid config, got: "),
    (["--trainer.precision=17"], "got: trainer.precision: "),
    (["stray"], "unrecognized arguments: stray"),
    (["--model.warmup=7"], "model.warmup: Input should be less than or equal to 1"),
    (["--model.optimizer.init_args.lrr=1"], "did you mean 'lr'?"),
    (["--config", "nowhere.yml"], "check the path and its ending"),
    (["--ckpt_path", "nowhere.ckpt"], "nowhere.ckpt"),
    (["--ckpt-path", "best"], "got 'best' ("),
    (["--ckpt_path="], "expected a checkpoint that this run can use, got ''"),
    (["--trainer.logger", "tests.cli.test_main.NotInstalled"], "pip install it"),
    (["--data.train=[]"], "at least one shard set in train"),
]


@pytest.mark.parametrize(("arguments", "part"), UNKNOWN)
def test_wrong_arguments_are_said_before_the_first_step(config, capsys, arguments, part):
    refused(capsys, ["fit", "--config", config, *arguments], part)


DAMAGES = [
    {"pytorch-lightning_version": None},
    {"optimizer_states": "x"},
    {"ShardDataModule": "x"},
    {"measured": "x"},
    {"wandb_runs": ["../../evil"]},
    {"wandb_runs": [""]},
]


@pytest.mark.parametrize("changes", DAMAGES)
def test_a_damaged_checkpoint_is_one_line(fitted, config, capsys, tmp_path, changes):
    content = torch.load(checkpoint(fitted), weights_only=True) | changes
    path = tmp_path / "damaged.ckpt"
    torch.save({key: value for key, value in content.items() if value is not None}, path)
    words = ["fit", "--config", config, "--ckpt_path", path, "--trainer.max_steps=4"]
    refused(capsys, words, str(path))


def test_what_lightning_itself_raises_is_of_the_config(config, capsys, monkeypatch):
    def fail(trainer):
        raise KeyError("a")

    # As if it stood in a file of Lightning.
    theirs = FunctionType(fail.__code__, {"__name__": "pytorch_lightning.loops.fit_loop"})
    monkeypatch.setattr(Trainer, "_run_stage", theirs)
    refused(capsys, ["fit", "--config", config], "config that Lightning can run, got KeyError")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["evalute"], "got 'evalute': did you mean 'evaluate'?"),
        (
            ["score", "m", "i.png", "--text", "a", "--nothing=1"],
            "got '--nothing' (see `vlmtune sc",
        ),
        (["evaluate", "--benchmrks", "x"], "'--benchmrks': did you mean '--benchmarks'?"),
        (["evaluate", "—-model", "x"], "got '—-model': did you mean '--model'?"),  # as pages have
        (["build", "table", "a.csv", "–out", "x"], "got '–out': did you mean '--out'?"),
        (["search", "index", "— red", "--top", "0"], "expected 1 or more"),
        (["score", "m", "--text", "a", "--", "--i.png"], "m"),
        (["quickstart", "--size", "smal"], "--size, got 'smal': did you mean 'small'?"),
    ],
)
def test_a_word_that_no_command_knows(words, part, capsys):
    refused(capsys, words, part)


def test_wrong_keys_of_a_config_are_named(write_config, capsys):
    path = write_config(data={"batch_sise": 4})
    refused(capsys, ["fit", "--config", path], "batch_sise", "did you mean 'data.batch_size'?")
    path = write_config(optimiser={"lr": 4})
    refused(capsys, ["fit", "--config", path], "optimiser")
    refused(capsys, ["fit", "--trainer.max_steps=1"], "required: model.backbone, ")


def test_data_is_looked_for_before_weights(write_config, tmp_path, capsys):
    gone = tmp_path / "none"
    path = write_config(data={"train": [plugin("data.shards.ShardSet", path=str(gone))]})
    words = ["fit", "--config", path, "--model.backbone.init_args.model=no"]
    lines = refused(capsys, words, repr(str(gone)), "run `vlmtune build`")
    # What is trained is said where training begins, and not before an error.
    assert len(lines) == 1, lines


def test_missing_files_are_said_before_the_first_step(write_config, capsys, monkeypatch, benchmark):
    path = write_config()
    spec = json.loads(benchmark.read_text())
    spec["init_args"]["path"] = "nowhere.json"
    (path.parent / "benchmark.yaml").write_text(json.dumps(spec))
    monkeypatch.setattr(AdaptationModule, "training_step", lambda *_: pytest.fail("a step"))
    refused(capsys, ["fit", "--config", path], "nowhere.json")
    arguments = ["evaluate", "--model", "x", "--benchmarks", path.parent / "benchmark.yaml"]
    refused(capsys, [*arguments, "--out", "out"], "nowhere.json")


def test_a_checkpoint_of_another_adapter(fitted, write_config, capsys):
    path = write_config()
    spec = plugin("adapters.mm_adapter.MMAdapter", heads=2)
    (path.parent / "plugins" / "adapter.yaml").write_text(json.dumps(spec))
    command = ["fit", "--config", path, "--ckpt_path"]
    lines = refused(capsys, [*command, checkpoint(fitted)], "LinearProbe", "MMAdapter")
    assert len(lines) == 1, lines
    assert "init_args" not in lines[0]  # of two classes they have nothing in common


def test_images_and_captions_that_are_none(model_folder, pictures, tmp_path, capsys):
    text = tmp_path / "text.png"
    text.write_text("no image")
    score = ["score", model_folder]
    refused(capsys, [*score, text, "--text", "a cube"], "expected an image", "text.png")
    refused(capsys, [*score, tmp_path / "none.png", "--text", "a cube"], "none.png", "No such file")
    refused(capsys, [*score, tmp_path, "--text", "a cube"], "Is a directory")
    refused(capsys, [*score, pictures[0], "--text", " "], "expected captions with words")
    refused(capsys, [*score, pictures[0]], "--text", "vlmtune score --help")
    refused(capsys, [*score, pictures[0], "--text", "a", "--batch-size", "0"], "--batch-size")


def test_random_weights_need_their_name(write_config, benchmark, shards, pictures, tiny_vl, capsys):
    name = "Tiny-VL"
    evaluate = ["evaluate", "--model", name, "--benchmarks", benchmark, "--out", "out"]
    neighbours = ["neighbours", "--model", name, "--shards", shards, "--out", "out"]
    score = ["score", name, pictures[0], "--text", "a"]
    backbone = plugin("backbones.open_clip.OpenClip", model=name)
    fit = ["fit", "--config", write_config(model={"backbone": backbone})]
    for arguments in (evaluate, neighbours, score, fit):
        refused(capsys, arguments, "pretrained weights for Tiny-VL, got none", "'random'")

    given = ["--pretrained", "random"]
    assert main([str(x) for x in [*score, *given]]) == 0
    said = "Tiny-VL (random weights): numbers from random weights are meaningless"
    assert said in capsys.readouterr().err
    assert main([str(x) for x in [*evaluate, *given, "--device", "cpu"]]) == 0
    output = capsys.readouterr()
    assert "Tiny-VL (random weights)" in output.err
    assert "the frozen model has random weights" in output.out
    assert json.loads(Path("out/report.json").read_text())["name"] == f"{name} (random weights)"
    assert "has random weights" in Path("out/report.md").read_text()
    assert "has random weights" in Path("out/report.html").read_text()
    assert main([*map(str, fit), "--model.backbone.pretrained", "random"]) == 0
    assert "LinearProbe on OpenClip (random weights)" in capsys.readouterr().err


def test_every_command_with_a_model_has_the_same_options_for_it():
    (commands,) = command_parser()._subparsers._group_actions
    shared = {"--pretrained", "--architecture", "--packages", "--device", "--batch-size"}
    options = {name: {*parser._option_string_actions} for name, parser in commands.choices.items()}
    # A report may export a trial, whose classes may be of other packages.
    with_model = {name for name, known in options.items() if (shared - {"--packages"}) & known}
    names = "evaluate export index leaderboard neighbours probe score search"
    assert with_model == set(names.split())
    assert all(shared <= options[name] for name in with_model)


def test_wrong_benchmarks_commands_and_devices(model_folder, benchmark, capsys):
    evaluate = ["evaluate", "--model", model_folder, "--out", "out", "--benchmarks"]
    refused(capsys, [*evaluate, "cola_mutli"], "got 'cola_mutli': did you mean 'cola_multi'? Oth")
    refused(capsys, [*evaluate, "nowhere.yaml"], "got 'nowhere.yaml': there is no such file; name")
    refused(capsys, [*evaluate, benchmark, "--device", "abacus"], "abacus")
    Path("file").write_text("")
    refused(capsys, [*evaluate, benchmark, "--out", "file"], "'file'", "is a file: choose a folder")
    refused(capsys, [], "COMMAND")
    refused(capsys, ["report", "nowhere", "--out", "x"], "report.json")
    for text, *parts in (
        (json.dumps(cola_plugin(benchmark, limits=2)), "'limits'", "did you mean 'limit'?", "Cola"),
        (json.dumps(cola_plugin(benchmark, limit="two")), "limit", "two"),
        ("class_path: [", "YAML", "b.yaml"),
    ):
        Path("b.yaml").write_text(text)
        refused(capsys, [*evaluate, "b.yaml"], *parts)


CUBES = """
from collections.abc import Iterator
from data_builders.shard_builder import Record, ShardBuilder, image_group

class Cubes(ShardBuilder):
    def __init__(self, count: int = 2, name: str = "r") -> None:
        super().__init__()
        self.count, self.name = count, name

    def records(self) -> Iterator[Record]:
        for i in range(self.count):
            yield image_group(f"{self.name}{i}", {"a": True}), [open("a.png", "rb").read()]
"""


@pytest.fixture
def cubes(tmp_path, monkeypatch):
    (tmp_path / "cubes_for_test.py").write_text(CUBES)
    monkeypatch.syspath_prepend(tmp_path)
    Image.new("RGB", (4, 4)).save("a.png")
    path = tmp_path / "cubes.yaml"
    path.write_text("class_path: cubes_for_test.Cubes\ninit_args: {count: 3}\n")
    yield path
    sys.modules.pop("cubes_for_test", None)


@pytest.mark.filterwarnings("ignore:.*unclosed file.*")
def test_build(cubes, tmp_path, capsys):
    assert main(["build", str(cubes), "--out", "three"]) == 0, capsys.readouterr().err
    assert "1 shard, 3 records" in capsys.readouterr().out
    (tmp_path / "four.yaml").write_text("init_args: {count: 4}")
    config = ["--config", str(tmp_path / "four.yaml")]
    assert main(["build", str(cubes), *config, "--out", "four"]) == 0
    assert "4 records" in capsys.readouterr().out
    arguments = ["build", str(cubes), "--out", "five", *config, "--count", "5", "--name=x"]
    assert main(arguments) == 0
    assert "5 records" in capsys.readouterr().out
    assert json.loads(Path("five/manifest.json").read_text())["arguments"]["name"] == "x"
    assert main(["build", "cubes_for_test.Cubes", "--out", "two"]) == 0
    assert main(arguments) == 0  # is reused
    assert "reusing it" in capsys.readouterr().err
    refused(capsys, ["build", cubes, "--out", "five"], "something else")


def test_wrong_arguments_of_build(cubes, capsys):
    refused(capsys, ["build", cubes, "--out", "x", "--cuont", "4"], "cuont", "'count'")
    many = ["build", cubes, "--out", "x", "--count", "many"]
    refused(capsys, many, "count: Expected a <class 'int'>. Got value: many")
    refused(capsys, ["build", "scnes", "--out", "x"], "scenes", "'scnes'")
    refused(capsys, ["build", "scenes"], "--out")
    refused(capsys, ["build", "coco", "--out", "x"], "coco")
    assert not Path("x").exists()


def test_interrupting(config, capsys, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(AdaptationModule, "training_step", stop)
    handler = signal.getsignal(signal.SIGINT)
    try:
        assert main(["fit", "--config", str(config)]) == 130
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning ignores further ones
    assert capsys.readouterr().err.splitlines()[-1] == "vlmtune: interrupted"


SWALLOWED = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "vlmtune.cli.report":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except BaseException:
                pass
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
sys.argv = ["vlmtune", "report", "nowhere", "--out", "nowhere"]
from vlmtune.__main__ import entry
entry()
"""


def test_an_interrupt_that_an_import_swallows_ends_the_command():
    done = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "vlmtune: interrupted\n")


def test_faults_of_ours_are_told_apart(config, capsys, monkeypatch):
    def fault(*_):
        raise KeyError("a")

    monkeypatch.setattr(AdaptationModule, "training_step", fault)
    assert main(["fit", "--config", str(config)]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"KeyError: 'a': it comes from line {fault.__code__.co_firstlineno + 1} of" in line
    # Without a frame of a plug-in the fault is ours.
    assert "this is a bug in vlmtune; rerun with --debug" in explain(KeyError("a"))
    assert main(["fit", "--debug", "--config", str(config)]) == 1
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert error.splitlines()[-1].startswith("vlmtune: error: KeyError")
