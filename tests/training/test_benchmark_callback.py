import csv
import sys
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
from pytorch_lightning import LightningDataModule
from pytorch_lightning.callbacks import Callback, EarlyStopping, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, WandbLogger

from tests.ranks import run_ranks
from tests.refusals import refused
from tests.runs import QUIET, Clock, Watch, fit, module, quiet_trainer
from tests.tiny import write_cola
from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.benchmarks.cola_multi import ColaMulti
from vlmtune.data import ShardDataModule, ShardSet
from vlmtune.errors import UserError
from vlmtune.evaluation.scorer import Scorer
from vlmtune.model import read_checkpoint
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.report import RunReport, to_markdown
from vlmtune.results.item_row import ItemRow
from vlmtune.sources import downloads
from vlmtune.training import BenchmarkCallback
from vlmtune.training.monitors import check_checkpoints, check_monitored, check_validated
from vlmtune.training.wandb_items import changed_table

pytestmark = QUIET


def probe(model_folder):
    return module(model_folder, LinearProbe(initial_scale=10.0), [InfoNCE()])


@pytest.fixture
def made(model_folder):
    return probe(model_folder)


@pytest.fixture
def train(model_folder, shards, tmp_path):
    def train(*callbacks, made=None, steps=6, folder=tmp_path, **options):
        return fit(made or probe(model_folder), shards, folder, steps, callbacks, **options)

    return train


@pytest.fixture
def saved(tmp_path):
    return lambda folder=tmp_path: RunReport.load(folder / "report.json")


def steps(evaluation, name="cola/accuracy"):
    return [step for step, _ in evaluation.curves[name]]


@pytest.mark.parametrize(
    ("options", "length", "want"),
    [
        ({"every_n_epochs": 2}, 9, [6, 9]),  # always after the last
        ({"every_n_epochs": 0, "every_n_steps": 4}, 6, [4, 6]),
        ({"every_n_epochs": 1, "every_n_steps": 2}, 6, [2, 3, 4, 6]),
        ({"every_n_epochs": 0, "every_n_steps": 9}, 5, [5]),  # in the middle of an epoch
    ],
)
def test_it_evaluates_when_it_should_and_at_the_end(train, cola, options, length, want):
    evaluation = BenchmarkCallback([cola()], **options)
    train(evaluation, steps=length)
    assert steps(evaluation) == want


def test_missing_files_are_downloaded_if_it_is_told_so(train, cola, monkeypatch):
    names = []
    monkeypatch.setattr(downloads, "download_missing", names.append)
    train(BenchmarkCallback([cola()]), steps=1)
    train(BenchmarkCallback([cola()], download=True), steps=1)
    assert [[one.name for one in benchmarks] for benchmarks in names] == [["cola"]]


def test_evaluating_does_not_change_training(model_folder, shards, tmp_path, cola):
    _, plain = fit(module(model_folder), shards, tmp_path, 4)
    evaluation = BenchmarkCallback([cola()], every_n_steps=1)
    _, evaluated = fit(module(model_folder), shards, tmp_path, 4, (evaluation,))
    assert evaluated.losses == plain.losses


@pytest.mark.parametrize(
    ("every", "keep", "val"),
    [
        ({"every_n_steps": 2, "every_n_epochs": 0}, {"every_n_train_steps": 2}, True),
        ({"every_n_steps": 1, "every_n_epochs": 0}, {"every_n_train_steps": 3}, False),
        ({"every_n_epochs": 1}, {"every_n_epochs": 1}, False),
        ({"every_n_epochs": 1}, {"every_n_epochs": 1}, True),
    ],
)
def test_the_best_checkpoint_is_the_best_at_its_step(train, made, tmp_path, cola, every, keep, val):
    wanted = iter([0.25, 0.75, 0.5, 0.125, 0.875, 0.375])  # one for each evaluation

    class Scripted(ColaMulti):
        def run(self, scorer):
            result = super().run(scorer)
            value = next(wanted)
            measured.append((weights(made), value))
            metrics = {"accuracy": replace(result.metrics["accuracy"], value=value)}
            return replace(result, metrics=metrics)

    measured, scripted = [], cola(kind=Scripted)
    best = ModelCheckpoint(tmp_path / "best", "{step}", "cola/accuracy", mode="max", **keep)
    evaluation = BenchmarkCallback([scripted], **every)
    # The checkpoint comes first in the list, and must be saved last all the same.
    train(best, evaluation, made=made, save=True, val=val)
    kept = torch.load(best.best_model_path, weights_only=True)
    state = kept["state_dict"]
    (value,) = [v for seen, v in measured if all(seen[n].equal(w) for n, w in state.items())]
    curve, period = evaluation.curves["cola/accuracy"], keep.get("every_n_train_steps", 3)
    assert value == best.best_model_score.item() == dict(curve)[kept["global_step"]]
    assert value == max(v for step, v in curve if step % period == 0)


def weights(made):
    return {name: value.clone() for name, value in made.state_dict().items()}


@pytest.mark.parametrize(
    ("every", "keep", "fits"),
    [
        ({"every_n_steps": 2}, {"every_n_train_steps": 3}, False),
        ({"every_n_steps": 2}, {"every_n_train_steps": 4}, True),
        ({}, {"every_n_train_steps": 3}, False),
        ({"every_n_epochs": 2}, {}, False),
        ({"every_n_epochs": 2}, {"every_n_epochs": 4}, True),
        ({"every_n_epochs": 0, "every_n_steps": 3}, {"every_n_epochs": 1}, False),
        ({"every_n_steps": 1}, {"train_time_interval": timedelta(minutes=5)}, False),
        ({"every_n_epochs": 2}, {"monitor": "train/loss"}, True),
        ({}, {"monitor": "val/loss"}, True),
        ({}, {"monitor": "val/loss", "every_n_train_steps": 3}, False),
        ({}, {"monitor": "val/loss", "train_time_interval": timedelta(minutes=5)}, False),
    ],
)
def test_no_checkpoint_is_kept_by_an_older_number(every, keep, fits):
    best = ModelCheckpoint(**{"monitor": "cola/accuracy", **keep})
    trainer = quiet_trainer(callbacks=[best], enable_checkpointing=True)
    measured = {"every_n_steps": 0, "every_n_epochs": 1, **every}
    refusal = refused(f"{best.monitor} to be measured whenever")
    outcome = nullcontext() if fits else refusal
    with outcome:
        check_checkpoints(trainer, ["cola"], **measured)
        check_validated(trainer)


@pytest.mark.parametrize("monitor", ["cola/accuracy", "val/loss"])
def test_such_a_checkpoint_is_refused_before_the_first_step(train, tmp_path, cola, monitor):
    best = ModelCheckpoint(tmp_path / "best", monitor=monitor, every_n_train_steps=3)
    with refused("to be measured whenever"):
        train(BenchmarkCallback([cola()]), best, steps=1, save=True)
    assert not (tmp_path / "best").exists()


def test_loggers_see_every_number_at_its_step(train, tmp_path, cola):
    logger = CSVLogger(tmp_path, name="logs", version="one")
    evaluation = BenchmarkCallback([cola()], every_n_epochs=0, every_n_steps=2)
    trainer, _ = train(evaluation, steps=5, logger=logger, log_every_n_steps=3)
    assert trainer.logger is logger
    with (tmp_path / "logs" / "one" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name, metric in evaluation.results["cola"].metrics.items():
        logged = [(int(r["step"]), float(r[f"cola/{name}"])) for r in rows if r[f"cola/{name}"]]
        assert logged == evaluation.curves[f"cola/{name}"]
        assert logged[-1] == (5, metric.value)
        assert [step for step, _ in logged] == [2, 4, 5]
    assert any(row["train/loss"] for row in rows)


class FakeWandb(WandbLogger):
    def __init__(self):
        super().__init__(offline=True)
        self.logged = []

    @property
    def experiment(self):
        return SimpleNamespace(log=self.logged.append)

    def log_hyperparams(self, *args, **kwargs): ...

    def finalize(self, status): ...


def test_weights_and_biases_gets_tables_and_retrievals(train, made, cola, monkeypatch):
    fake = SimpleNamespace(Table=dict, Image=lambda image, caption: (image.size, caption))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    untrained = cola().run(Scorer(made.backbone, made.adapter))
    logger, evaluation = FakeWandb(), BenchmarkCallback([cola()])
    train(evaluation, made=made, logger=logger)
    tables = [entry for entry in logger.logged if "benchmarks" in entry]
    assert [entry["trainer/global_step"] for entry in tables] == [3, 6]
    (*_, last), result = tables, evaluation.results["cola"]
    assert last["benchmarks"]["columns"][:3] == ["benchmark", "metric", "value"]
    rows = [["cola", name, metric.value] for name, metric in result.metrics.items()]
    assert [row[:3] for row in last["benchmarks"]["data"]] == rows
    (shown,) = (e["cola/retrievals"] for e in logger.logged if "cola/retrievals" in e)
    assert len(shown) == len(result.examples)
    assert result.examples[0].query in shown[0][1]
    (items,) = (entry["items"] for entry in logger.logged if "items" in entry)
    assert items["columns"] == ["benchmark", "item", "captions", "scores", "before", "after"]
    assert [row[-2] for row in items["data"]] == list(untrained.outcomes)
    assert [row[-1] for row in items["data"]] == list(result.outcomes)


def test_changed_items_are_shown_with_their_pictures(cola):
    images = cola().read()[0].images
    before = [ItemRow(f"cola/{i}", "cola", outcome, images) for i, outcome in enumerate([0.0, 1.0])]
    after = [replace(row, outcome=1.0) for row in before]
    (row,) = changed_table(before, after, lambda picture: picture.size[0] > picture.size[1])
    assert row == [True, "cola", "cola/0", "", "", 0.0, 1.0]


def test_other_weights_at_the_same_step_are_measured(train, tmp_path, cola, saved):
    """Of an earlier checkpoint behind a training, and of another module in the next training."""
    evaluation = BenchmarkCallback([cola()], every_n_epochs=0)
    trainer, _ = train(evaluation, steps=2, save=True)
    before = evaluation.results["cola"]
    options = {"datamodule": trainer.datamodule, "verbose": False, "weights_only": True}
    (logged,) = trainer.test(ckpt_path=tmp_path / "stepstep=1.ckpt", **options)
    assert "cola/accuracy" in logged
    assert evaluation.results["cola"] is not before
    before = evaluation.results["cola"]
    train(evaluation, steps=2, folder=tmp_path / "next")
    assert evaluation.results["cola"] is not before
    assert [step for step, _ in saved(tmp_path / "next").curves["cola/accuracy"]] == [2]


def test_the_report_and_the_checkpoint_of_a_run_tell_where_its_weights_come_from(
    train, made, model_folder, shards, tmp_path, cola, saved
):
    evaluation = BenchmarkCallback([cola(limit=5, seed=2)], log_every_n_steps=2, name="toy")
    _, watch = train(evaluation, made=made, save=True)
    report = saved()
    assert report.name == "toy"
    assert report.results == (evaluation.results["cola"],)
    facts = report.provenance
    assert (facts.backbone, facts.adapter, facts.seed) == (str(model_folder), "LinearProbe", 0)
    assert facts.fingerprint == made.backbone.fingerprint
    assert facts.model == {"backbone": made.backbone.spec(), "adapter": made.adapter.spec()}
    assert facts.trainable_parameters == 2 * (16 * 16 + 16) + 2
    assert facts.config["steps"] == 6
    assert facts.config["objectives"] == [InfoNCE().spec()]
    drawn = facts.config["benchmarks"]["cola"]["init_args"]
    assert (drawn["limit"], drawn["seed"]) == (5, 2)
    assert facts.data == str(shards)
    assert 0 < facts.seconds < 100
    told = read_checkpoint(tmp_path / "stepstep=6.ckpt").provenance
    assert (told["data"], told["config"]) == (facts.data, facts.config)
    assert (told["seed"], told["versions"], told["commit"]) == (0, facts.versions, facts.commit)
    assert 0 < told["seconds"] <= facts.seconds
    assert [step for step, _ in report.curves["train/loss"]] == [2, 4, 6]
    assert [loss for _, loss in report.curves["train/loss"]] == pytest.approx(watch.losses[1::2])
    assert [step for step, _ in report.curves["cola/accuracy"]] == [3, 6]


class Tells(InfoNCE):
    """Tells the loss a second time."""

    def diagnose(self, scores, targets):
        return {"again": float(self(scores, targets).detach())}


class Own(LightningDataModule):
    """A datamodule of a user, which gives batches and tells nothing of its data."""

    def __init__(self, path):
        super().__init__()
        self.inner = ShardDataModule([ShardSet(str(path))], batch_size=4)

    def train_dataloader(self):
        self.inner.trainer = self.trainer
        self.inner.setup("fit")
        return self.inner.train_dataloader()

    def val_dataloader(self):
        return self.inner.val_dataloader()


def test_a_run_over_other_data_reports_what_it_measured_when(
    model_folder, shards, tmp_path, cola, saved
):
    made = module(model_folder, LinearProbe(initial_scale=10.0), [Tells()])
    evaluation = BenchmarkCallback([cola()], every_n_epochs=0, log_every_n_steps=1)
    options = {"default_root_dir": tmp_path, "log_every_n_steps": 2, "accumulate_grad_batches": 2}
    trainer = quiet_trainer(max_steps=3, callbacks=[evaluation], **options)
    trainer.fit(made, datamodule=Own(shards))
    report = saved()
    assert report.provenance.data == ""
    assert [step for step, _ in report.curves["train/loss"]] == [1, 2, 3]
    # Between two logged steps there is no new number.
    assert report.curves["train/Tells/again"] == report.curves["train/loss"][1:2]


def test_the_report_goes_where_it_is_told(train, tmp_path, cola, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # in a config no shell replaces ~
    path = tmp_path / "reports" / "mine.json"
    options = {"report": "~/reports/mine.json", "store": "~/store", "log_every_n_steps": 0}
    train(BenchmarkCallback([cola()], **options), steps=1)
    report = RunReport.load(path)
    assert report.results
    assert "train/loss" not in report.curves  # every 0 steps is never
    assert not (tmp_path / "report.json").exists()
    assert len(list((tmp_path / "store").glob("*/meta.json"))) == 2


SLOW = [pytest.param(step, marks=pytest.mark.slow) for step in (2, 5)]


@pytest.mark.parametrize("die_at", [3, 4, *SLOW])
def test_a_resumed_run_reports_the_whole(train, tmp_path, cola, saved, die_at):
    whole, first, second = (BenchmarkCallback([cola()], log_every_n_steps=1) for _ in range(3))
    train(whole, folder=tmp_path / "whole")
    folder = tmp_path / "killed"
    train(first, folder=folder, save=True, die_at=die_at)
    assert not (folder / "report.json").exists()
    train(second, folder=folder, resume=folder / f"stepstep={die_at}.ckpt")
    one, other = (saved(tmp_path / name) for name in ("whole", "killed"))
    assert other.curves == one.curves
    assert other.results == one.results
    assert other.provenance.seconds > 0


@pytest.mark.parametrize(
    ("limit", "every"),
    [
        ({"steps": 6}, {"every_n_epochs": 0, "every_n_steps": 4}),
        pytest.param({"steps": -1, "max_epochs": 2}, {}, marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_at_its_end_still_reports(train, made, tmp_path, cola, saved, limit, every):
    """Its checkpoint was written, its evaluation not: the resumed run has nothing to train."""
    first, second = (BenchmarkCallback([cola()], **every) for _ in range(2))
    train(first, save=True, **limit)
    one = saved()
    (tmp_path / "report.json").unlink()
    _, watch = train(second, made=made, save=True, resume=tmp_path / "stepstep=6.ckpt", **limit)
    assert watch.losses == []
    other = saved()
    assert other.results == one.results
    alone = cola().run(Scorer(made.backbone, made.adapter))
    assert [result.metrics for result in one.results] == [alone.metrics]
    assert other.curves["cola/accuracy"][-1] == one.curves["cola/accuracy"][-1]
    assert other.provenance.config == one.provenance.config
    assert 0 < other.provenance.seconds <= one.provenance.seconds


def test_the_time_of_evaluation_is_not_that_of_training(train, cola, saved, monkeypatch):
    clock = Clock(monkeypatch)

    class Slow(ColaMulti):
        def run(self, scorer):
            clock.now += 1000
            return super().run(scorer)

    train(clock, BenchmarkCallback([cola(kind=Slow)], every_n_steps=1), steps=2)
    assert saved().provenance.seconds == 2


class Fails(ColaMulti):
    """Cannot be evaluated at the given times, of which the first is 1."""

    at = (1, 2)
    calls = 0

    def evaluate(self, scores):
        self.calls += 1
        if self.calls in self.at:
            raise UserError(f"expected a sound\nfile, got none at {self.calls}: mend it")
        return super().evaluate(scores)


@pytest.fixture
def fails(cola):
    """Returns a function that makes a benchmark that fails at the given times."""

    def make(*at):
        one = cola("fails", Fails)
        one.at = at
        return one

    return make


def gone(tmp_path, name="gone"):
    return ColaMulti(str(tmp_path / "nowhere.json"), str(tmp_path), name=name)


def warned(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_missing_file_is_said_once_and_others_are_run(train, made, tmp_path, cola, saved, caplog):
    said_at_start = []
    made.on_train_start = lambda: said_at_start.extend(warned(caplog))
    evaluation = BenchmarkCallback([gone(tmp_path), cola()])
    train(evaluation, made=made)
    (line,) = warned(caplog)
    assert said_at_start == [line]
    assert line.startswith("not run: gone: expected ")
    assert "nowhere.json" in line
    report = saved()
    assert [result.benchmark for result in report.results] == ["cola"]
    assert report.not_run == (("gone", line.removeprefix("not run: gone: ")),)
    assert steps(evaluation) == [3, 6]
    assert not any(name.startswith("gone") for name in evaluation.curves)


def test_one_that_fails_later_stops_nothing_else(train, fails, cola, saved, caplog):
    evaluation = BenchmarkCallback([fails(1, 2), cola()])
    trainer, watch = train(evaluation)
    assert len(watch.losses) == 6
    assert warned(caplog) == ["not run: fails: expected a sound file, got none at 1: mend it"]
    report = saved()
    assert report.not_run == (("fails", "expected a sound file, got none at 2: mend it"),)
    assert report.results == (evaluation.results["cola"],)
    assert "cola/accuracy" in trainer.callback_metrics
    assert not any("fails" in name for name in [*trainer.callback_metrics, *report.curves])
    assert "not run: expected a sound file" in to_markdown([report])


def test_numbers_of_earlier_weights_are_not_those_of_the_last(train, fails, cola, saved, caplog):
    evaluation = BenchmarkCallback([cola(), fails(2, 4)], every_n_epochs=0, every_n_steps=1)
    trainer, _ = train(evaluation, steps=4)
    assert steps(evaluation, "fails/accuracy") == [1, 3]
    assert len(warned(caplog)) == 2  # it had run again
    report = saved()
    assert [name for name, _ in report.not_run] == ["fails"]
    assert [result.benchmark for result in report.results] == ["cola"]
    assert "fails/accuracy" not in trainer.callback_metrics


def test_training_goes_on_where_no_benchmark_can_be_run_any_more(
    train, made, tmp_path, cola, saved
):
    class Removing(Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 4:
                next((tmp_path / "cola").glob("*.png")).unlink()

    evaluation = BenchmarkCallback([cola()])
    _, watch = train(Removing(), evaluation)
    assert len(watch.losses) == 6
    report = saved()
    assert report.results == ()
    ((name, why),) = report.not_run
    assert name == "cola"
    assert ".png" in why
    assert [step for step, _ in report.curves["cola/accuracy"]] == [3]
    assert "not run: expected" in to_markdown([report])
    with refused(r"\.png"):
        evaluation.evaluate(quiet_trainer(), made)


@pytest.mark.parametrize("known", [True, False])
def test_a_run_stops_where_what_is_not_run_is_monitored(train, tmp_path, fails, cola, known):
    watch, best = Watch(), ModelCheckpoint(tmp_path / "best", monitor="fails/accuracy")
    evaluation = BenchmarkCallback([gone(tmp_path, "fails") if known else fails(2), cola()])
    with refused() as error:
        train(watch, best, evaluation, steps=9, save=True)
    said, why = str(error.value), "got no number, as fails is not run: expected "
    assert said.startswith(f"expected fails/accuracy, which ModelCheckpoint monitors, {why}")
    assert "\n" not in said
    assert ("nowhere.json" in said) == known
    assert len(watch.losses) == (0 if known else 6)
    assert (tmp_path / "best").exists() == (not known)


def test_early_stopping_and_schedules_monitor_too():
    plateau = SimpleNamespace(reduce_on_plateau=True, scheduler=object(), monitor="fails/accuracy")
    stopping = EarlyStopping("fails/accuracy")
    for callbacks, schedules, who in (([stopping], [], "EarlyStopping"), ([], [plateau], "object")):
        trainer = quiet_trainer(callbacks=callbacks)
        trainer.strategy.lr_scheduler_configs = schedules
        with refused(f"expected fails/accuracy, which {who} monitors, got no number"):
            check_monitored(trainer, {"fails": "it is gone"})


def _one_rank(rank, folder, model_folder, shards, path, monitored):
    """What a rank says and has where a benchmark fails after the first step, on rank 1 alone."""
    torch.set_num_threads(1)
    moody = Fails(str(path), str(path.parent), name="moody")
    moody.at = (2, 3) if rank else ()
    here = folder / "nowhere.json" if rank else path
    lost = ColaMulti(str(here), str(path.parent), name="lost")
    benchmarks = [lost, ColaMulti(str(path), str(path.parent), name="cola"), moody]
    evaluation = BenchmarkCallback(benchmarks, every_n_epochs=0, every_n_steps=1)
    stopping = [EarlyStopping("moody/accuracy", check_on_train_epoch_end=True)] if monitored else []
    callbacks, said = (evaluation, *stopping), None
    try:
        fit(probe(model_folder), shards, folder, 3, callbacks, devices=2, strategy="ddp")
    except UserError as error:
        said = str(error)
    metrics = {n: m.value for n, m in evaluation.results["cola"].metrics.items()}
    return said, steps(evaluation), evaluation.not_run, metrics


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("monitored", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_ranks_evaluate_together(model_folder, shards, tmp_path, monitored):
    path = write_cola(tmp_path / "cola")
    arguments = (tmp_path, model_folder, shards, path, monitored)
    one, other = run_ranks(2, tmp_path / "ranks", _one_rank, *arguments)
    assert one == other
    said, measured, not_run, metrics = one
    assert list(not_run) == ["lost", "moody"]
    assert "nowhere.json" in not_run["lost"]
    assert f"got none at {measured[-1]}" in not_run["moody"]
    assert measured == ([1, 2] if monitored else [1, 2, 3])
    assert 0 <= metrics["accuracy"] <= 1
    if monitored:
        assert said.startswith("expected moody/accuracy, which EarlyStopping monitors, got no")
        assert not (tmp_path / "report.json").exists()
        return
    assert said is None
    report = RunReport.load(tmp_path / "report.json")
    assert report.not_run == tuple(not_run.items())
    assert [result.benchmark for result in report.results] == ["cola"]
