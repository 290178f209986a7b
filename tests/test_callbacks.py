import multiprocessing
import os

import pytest
import torch
import torch.distributed as dist
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from tests.tiny import write_cola
from tests.training import QUIET, fit, module
from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.benchmarks.cola_multi import ColaMulti
from vlmtune.callbacks import Evaluation
from vlmtune.data.datamodule import ShardDataModule
from vlmtune.data.shards import ShardSet
from vlmtune.errors import UserError
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


def test_benchmarks_need_names_of_their_own(cola):
    with pytest.raises(UserError, match=r"got \['cola', 'cola'\]"):
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
