import csv
import multiprocessing
import os
import sys
import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, WandbLogger

from tests.runs import QUIET, fit, module
from tests.tiny import write_cola
from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.benchmarks.cola_multi import ColaMulti
from vlmtune.callbacks import Evaluation
from vlmtune.data.datamodule import ShardDataModule
from vlmtune.data.shards import ShardSet
from vlmtune.errors import UserError
from vlmtune.export import read_checkpoint
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.report.results import RunReport
from vlmtune.scoring import Scorer

pytestmark = QUIET


@pytest.fixture
def cola(tmp_path):
    """Returns a function that makes a benchmark of nine items."""
    path = write_cola(tmp_path / "cola")

    def make(name="cola", **options):
        return ColaMulti(str(path), str(path.parent), name=name, **options)

    return make


def probe(model_folder):
    return module(model_folder, LinearProbe(initial_scale=10.0), [InfoNCE()])


def steps(evaluation, name="cola/accuracy"):
    return [step for step, _ in evaluation.curves[name]]


# -- schedule ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "length", "want"),
    [
        ({}, 6, [3, 6]),
        ({"every_n_epochs": 2}, 9, [6, 9]),  # always after the last
        ({"every_n_epochs": 5}, 6, [6]),
        ({"every_n_epochs": 0, "every_n_steps": 2}, 6, [2, 4, 6]),
        ({"every_n_epochs": 0, "every_n_steps": 4}, 6, [4, 6]),
        ({"every_n_epochs": 1, "every_n_steps": 2}, 6, [2, 3, 4, 6]),
        ({"every_n_epochs": 0, "every_n_steps": 9}, 5, [5]),  # in the middle of an epoch
    ],
)
def test_it_evaluates_when_it_should_and_at_the_end(
    model_folder, shards, tmp_path, cola, options, length, want
):
    evaluation = Evaluation([cola()], **options)
    fit(probe(model_folder), shards, tmp_path, steps=length, callbacks=(evaluation,))
    assert steps(evaluation) == want


def test_epochs_may_limit_the_run(model_folder, shards, tmp_path, cola):
    evaluation = Evaluation([cola()], every_n_epochs=5)
    fit(probe(model_folder), shards, tmp_path, -1, (evaluation,), max_epochs=2)
    assert steps(evaluation) == [6]


def test_the_numbers_are_those_of_the_trained_model(model_folder, shards, tmp_path, cola):
    evaluation, made = Evaluation([cola("one"), cola("two", limit=1)]), probe(model_folder)
    trainer, _ = fit(made, shards, tmp_path, callbacks=(evaluation,))
    assert made.adapter.training  # scoring put back what it changed
    for benchmark in (cola("one"), cola("two", limit=1)):
        result = benchmark.run(Scorer(made.backbone, made.adapter))
        assert evaluation.results[benchmark.name].metrics == result.metrics
        for name, metric in result.metrics.items():
            key = f"{benchmark.name}/{name}"
            assert trainer.callback_metrics[key].item() == pytest.approx(metric.value)
            assert evaluation.curves[key][-1] == (6, metric.value)


def test_evaluating_does_not_change_training(model_folder, shards, tmp_path, cola):
    _, plain = fit(module(model_folder), shards, tmp_path)
    evaluation = Evaluation([cola()], every_n_steps=1)
    _, evaluated = fit(module(model_folder), shards, tmp_path, callbacks=(evaluation,))
    assert evaluated.losses == plain.losses


def test_a_checkpoint_may_be_kept_by_a_number(model_folder, shards, tmp_path, cola):
    keep = ModelCheckpoint(tmp_path / "best", monitor="cola/accuracy", mode="max")
    fit(
        probe(model_folder),
        shards,
        tmp_path,
        callbacks=(Evaluation([cola()]), keep),
        save=True,
    )
    assert keep.best_model_score is not None
    assert os.path.exists(keep.best_model_path)


@pytest.mark.parametrize(
    ("every", "keep"),
    [
        ({"every_n_steps": 2, "every_n_epochs": 0}, {"every_n_train_steps": 2}),
        ({"every_n_steps": 1, "every_n_epochs": 0}, {"every_n_train_steps": 3}),
        ({"every_n_epochs": 1}, {"every_n_epochs": 1}),
    ],
)
@pytest.mark.parametrize("val", [False, True])
def test_the_best_checkpoint_is_the_best_at_its_own_step(
    model_folder, shards, tmp_path, cola, every, keep, val
):
    wanted = iter([0.25, 0.75, 0.5, 0.125, 0.875, 0.375])  # one for each evaluation

    class Scripted(ColaMulti):
        def run(self, scorer):
            result = super().run(scorer)
            value = next(wanted)
            measured.append((weights(made), value))
            metrics = {"accuracy": replace(result.metrics["accuracy"], value=value)}
            return replace(result, metrics=metrics)

    path = tmp_path / "cola" / "cola.json"
    cola()
    measured, made = [], probe(model_folder)
    best = ModelCheckpoint(tmp_path / "best", "{step}", "cola/accuracy", mode="max", **keep)
    evaluation = Evaluation([Scripted(str(path), str(path.parent), name="cola")], **every)
    # The checkpoint comes first in the list, and must be saved last all the same.
    fit(made, shards, tmp_path, 6, (best, evaluation), save=True, val=val)
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
    ],
)
def test_no_checkpoint_is_kept_by_an_older_number(
    model_folder, shards, tmp_path, cola, every, keep, fits
):
    best = ModelCheckpoint(tmp_path / "best", **{"monitor": "cola/accuracy", **keep})
    callbacks = (Evaluation([cola()], **every), best)
    if fits:
        fit(probe(model_folder), shards, tmp_path, 1, callbacks, save=True)
        return
    with pytest.raises(UserError, match=r"cola/accuracy to be measured whenever"):
        fit(probe(model_folder), shards, tmp_path, 1, callbacks, save=True)
    assert not (tmp_path / "best").exists()


def test_loggers_see_every_number_at_its_step(model_folder, shards, tmp_path, cola):
    logger = CSVLogger(tmp_path, name="logs", version="one")
    evaluation = Evaluation([cola()], every_n_epochs=0, every_n_steps=2)
    trainer, _ = fit(
        probe(model_folder), shards, tmp_path, 5, (evaluation,), logger=logger, log_every_n_steps=3
    )
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
    """A logger of Weights & Biases whose run is a list."""

    def __init__(self):
        super().__init__(offline=True)
        self.logged = []

    @property
    def experiment(self):
        return SimpleNamespace(log=self.logged.append)

    def log_hyperparams(self, *args, **kwargs): ...

    def finalize(self, status): ...


def test_weights_and_biases_gets_tables_and_retrievals(
    model_folder, shards, tmp_path, cola, monkeypatch
):
    def table(**options):
        return options

    def picture(image, caption):
        return image.size, caption

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Table=table, Image=picture))
    logger, evaluation = FakeWandb(), Evaluation([cola()])
    fit(probe(model_folder), shards, tmp_path, callbacks=(evaluation,), logger=logger)
    tables = [entry for entry in logger.logged if "benchmarks" in entry]
    assert [entry["trainer/global_step"] for entry in tables] == [3, 6]
    (*_, last), result = tables, evaluation.results["cola"]
    assert last["benchmarks"]["columns"][:3] == ["benchmark", "metric", "value"]
    assert [row[:3] for row in last["benchmarks"]["data"]] == [
        ["cola", name, metric.value] for name, metric in result.metrics.items()
    ]
    (shown,) = (e["cola/retrievals"] for e in logger.logged if "cola/retrievals" in e)
    assert len(shown) == len(result.examples)
    assert result.examples[0].query in shown[0][1]


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_outside_training(model_folder, shards, tmp_path, cola, stage):
    evaluation = Evaluation([cola()])
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[evaluation],
    )
    sets = [ShardSet(str(shards))]
    data = ShardDataModule(sets, batch_size=4, val=sets)
    (logged,) = getattr(trainer, stage)(probe(model_folder), datamodule=data, verbose=False)
    assert logged["cola/accuracy"] == pytest.approx(
        evaluation.results["cola"].metrics["accuracy"].value
    )


# -- the report -------------------------------------------------------------------------------


def test_the_report_of_a_run(model_folder, shards, tmp_path, cola):
    evaluation, made = Evaluation([cola()], log_every_n_steps=2, name="toy"), probe(model_folder)
    _, watch = fit(made, shards, tmp_path, callbacks=(evaluation,))
    report = RunReport.load(tmp_path / "report.json")
    assert report.name == "toy"
    assert report.results == (evaluation.results["cola"],)
    facts = report.provenance
    assert (facts.backbone, facts.adapter, facts.seed) == ("OpenClip", "LinearProbe", 0)
    assert facts.fingerprint == made.backbone.fingerprint
    assert facts.model == {"backbone": made.backbone.spec(), "adapter": made.adapter.spec()}
    assert facts.trainable_parameters == 2 * (16 * 16 + 16) + 2
    assert facts.config["steps"] == 6
    assert facts.config["objectives"] == [InfoNCE().spec()]
    assert str(shards) in facts.data
    assert 0 < facts.seconds < 100
    assert [step for step, _ in report.curves["train/loss"]] == [2, 4, 6]
    assert [loss for _, loss in report.curves["train/loss"]] == pytest.approx(watch.losses[1::2])
    assert [step for step, _ in report.curves["cola/accuracy"]] == [3, 6]


def test_the_report_goes_where_it_is_told(model_folder, shards, tmp_path, cola):
    path = tmp_path / "reports" / "mine.json"
    evaluation = Evaluation([cola()], report=str(path), store=str(tmp_path / "store"))
    fit(probe(model_folder), shards, tmp_path, steps=1, callbacks=(evaluation,))
    assert RunReport.load(path).results
    assert not (tmp_path / "report.json").exists()
    assert len(list((tmp_path / "store").glob("*/meta.json"))) == 2


@pytest.mark.parametrize("die_at", [2, 3, 4, 5])
def test_a_resumed_run_reports_the_whole(model_folder, shards, tmp_path, cola, die_at):
    def evaluation():
        return Evaluation([cola()], log_every_n_steps=1)

    whole, first, second = evaluation(), evaluation(), evaluation()
    fit(probe(model_folder), shards, tmp_path / "whole", callbacks=(whole,))
    folder = tmp_path / "killed"
    fit(probe(model_folder), shards, folder, 6, (first,), save=True, die_at=die_at)
    assert not (folder / "report.json").exists()
    checkpoint = folder / f"stepstep={die_at}.ckpt"
    fit(probe(model_folder), shards, folder, 6, (second,), resume=checkpoint)
    one, other = (RunReport.load(tmp_path / name / "report.json") for name in ("whole", "killed"))
    # Lightning does not end an epoch again whose last batch came before the checkpoint.
    lost = {3} if die_at == 3 else set()
    for name, curve in one.curves.items():
        left = tuple(point for point in curve if "cola" not in name or point[0] not in lost)
        assert other.curves[name] == left
    assert other.results == one.results
    assert other.provenance.seconds > 0


@pytest.mark.parametrize("limit", [{"steps": 6}, {"steps": -1, "max_epochs": 2}])
@pytest.mark.parametrize("every", [{}, {"every_n_epochs": 0, "every_n_steps": 4}])
def test_a_run_killed_after_its_last_step_still_reports(
    model_folder, shards, tmp_path, cola, limit, every
):
    """Its checkpoint was written, its evaluation not: the resumed run has nothing to train."""
    first, second = Evaluation([cola()], **every), Evaluation([cola()], **every)
    whole = probe(model_folder)
    fit(whole, shards, tmp_path, callbacks=(first,), save=True, **limit)
    one = RunReport.load(tmp_path / "report.json")
    (tmp_path / "report.json").unlink()
    again = probe(model_folder)
    _, watch = fit(
        again,
        shards,
        tmp_path,
        callbacks=(second,),
        save=True,
        resume=tmp_path / "stepstep=6.ckpt",
        **limit,
    )
    assert watch.losses == []
    other = RunReport.load(tmp_path / "report.json")
    assert other.results == one.results
    alone = cola().run(Scorer(again.backbone, again.adapter))
    assert [result.metrics for result in one.results] == [alone.metrics]
    assert other.curves["cola/accuracy"][-1] == one.curves["cola/accuracy"][-1]
    assert other.provenance.config == one.provenance.config
    assert 0 < other.provenance.seconds <= one.provenance.seconds


def test_the_time_of_evaluation_is_not_that_of_training(model_folder, shards, tmp_path, cola):
    class Slow(ColaMulti):
        def run(self, scorer):
            time.sleep(1)
            return super().run(scorer)

    cola()
    path = tmp_path / "cola" / "cola.json"
    evaluation = Evaluation([Slow(str(path), str(path.parent))], every_n_steps=1)
    fit(probe(model_folder), shards, tmp_path, 2, (evaluation,))
    assert 0 < RunReport.load(tmp_path / "report.json").provenance.seconds < 1


def test_a_checkpoint_tells_where_its_weights_come_from(model_folder, shards, tmp_path, cola):
    fit(probe(model_folder), shards, tmp_path, 2, (Evaluation([cola()]),), save=True)
    facts = RunReport.load(tmp_path / "report.json").provenance
    told = read_checkpoint(tmp_path / "stepstep=2.ckpt").provenance
    assert told["data"] == facts.data == str(shards)
    assert told["config"] == facts.config
    assert (told["seed"], told["versions"], told["commit"]) == (0, facts.versions, facts.commit)
    assert 0 < told["seconds"] <= facts.seconds


# -- what is refused --------------------------------------------------------------------------


def test_a_missing_file_is_said_before_the_first_step(model_folder, shards, tmp_path):
    evaluation = Evaluation([ColaMulti(str(tmp_path / "nowhere.json"), str(tmp_path))])
    watched = []
    made = probe(model_folder)
    made.on_fit_start = lambda: watched.append("began")
    with pytest.raises(UserError, match=r"nowhere\.json"):
        fit(made, shards, tmp_path, callbacks=(evaluation,))
    assert watched == []
    assert not (tmp_path / "report.json").exists()


def test_a_benchmark_that_fails_stops_the_training(model_folder, shards, tmp_path, cola):
    class Broken(ColaMulti):
        def evaluate(self, scores):
            raise UserError("expected a sound benchmark, got none: mend it")

    cola()
    path = tmp_path / "cola" / "cola.json"
    evaluation = Evaluation([cola("sound"), Broken(str(path), str(path.parent))])
    with pytest.raises(UserError, match="expected a sound benchmark"):
        fit(probe(model_folder), shards, tmp_path, callbacks=(evaluation,))


def test_images_are_encoded_once_for_all_benchmarks(
    model_folder, shards, tmp_path, cola, monkeypatch
):
    benchmarks, made = [cola("one"), cola("two"), cola("three", limit=2)], probe(model_folder)
    encode, encoded = made.backbone.encode_image, []

    def counted(pixels, reads):
        encoded.append(len(pixels))
        return encode(pixels, reads)

    monkeypatch.setattr(made.backbone, "encode_image", counted)
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    evaluation = Evaluation(benchmarks)
    monkeypatch.setattr(evaluation, "_log", lambda *_: None)  # for which there is no trainer
    evaluation.setup(trainer, made, "fit")
    evaluation.evaluate(trainer, made)
    assert sum(encoded) == 18
    assert evaluation.results["one"].metrics == evaluation.results["two"].metrics


def test_benchmarks_need_names_of_their_own(cola):
    with pytest.raises(UserError, match="got 'cola' twice"):
        Evaluation([cola(), cola()])
    with pytest.raises(UserError, match="list at least one"):
        Evaluation([])
    Evaluation([cola("one"), cola("two")])


@pytest.mark.parametrize(("epochs", "every"), [(0, 0), (-1, 0), (1, -1)])
def test_a_schedule_is_needed(cola, epochs, every):
    with pytest.raises(UserError, match=f"every_n_epochs={epochs} and every_n_steps={every}"):
        Evaluation([cola()], every_n_epochs=epochs, every_n_steps=every)


# -- two processes ----------------------------------------------------------------------------


def _rank(rank, folder, model_folder, shards, cola, results):
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",  # not used: the group is there already
        "TORCHELASTIC_RUN_ID": "test",
    }
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        evaluation, made = Evaluation([cola], every_n_steps=1), probe(model_folder)
        trainer, _ = fit(made, shards, folder, 2, (evaluation,), devices=2, strategy="ddp")
        alone = made.adapter.image.weight.detach().sum().item()
        metrics = {n: m.value for n, m in evaluation.results["cola"].metrics.items()}
        results.put((rank, trainer.world_size, steps(evaluation), metrics, alone))
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_ranks_evaluate_together(model_folder, shards, tmp_path, cola):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    arguments = (tmp_path, model_folder, shards, cola(), results)
    ranks = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        one, other = sorted(results.get(timeout=60) for _ in ranks)
    finally:
        for process in ranks:
            process.join(10)
            process.kill()
    assert one[1:] == other[1:]
    assert one[1] == 2
    assert one[2] == [1, 2]
    assert RunReport.load(tmp_path / "report.json").results
