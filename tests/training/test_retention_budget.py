"""A run in which a retained ability falls warns, stops, or moves its weights back."""

import pytest
import torch
from pytorch_lightning.callbacks import Callback, GradientAccumulationScheduler

from tests.ranks import run_ranks
from tests.refusals import refused
from tests.runs import QUIET, fit, module, quiet_trainer, same_weights, weights
from tests.training.test_ema import Noting
from vlmtune.adapters import LinearProbe, MMAdapter
from vlmtune.benchmarks.cola_multi import ColaMulti
from vlmtune.evaluation import Scorer, run_suite
from vlmtune.model.resolving import attached
from vlmtune.model.wise_ft import WiseFT
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.results.metric_value import MetricValue, Unit
from vlmtune.results.result import Result
from vlmtune.training.ema import EMA
from vlmtune.training.retention_budget import WITHIN, Action, RetentionBudget

pytestmark = QUIET
DROP = 0.05


class Near(ColaMulti):
    """A benchmark whose number is 1 for the first scores it sees, and less the more they differ."""

    unit: Unit = "fraction"

    def evaluate(self, scores):
        self.first = getattr(self, "first", scores.clone())
        value = 1 / (1 + float((scores - self.first).abs().max()))
        return Result(self.name, "1", "near", {"near": MetricValue(value, 9, unit=self.unit)})


class Still(Near):
    """A benchmark whose number never changes."""

    def evaluate(self, scores):
        return super().evaluate(0 * scores)


@pytest.fixture
def near(cola):
    return cola("near", Near)


@pytest.fixture
def said(caplog):
    return lambda: [r.message for r in caplog.records if r.name == "vlmtune"]


@pytest.fixture
def run(model_folder, shards, tmp_path, near):
    def made(
        action: Action = "warn",
        max_drop=DROP,
        callbacks=(),
        every=2,
        adapter=None,
        others=(),
        **options,
    ):
        probe = module(model_folder, adapter or LinearProbe(initial_scale=10.0), [InfoNCE()])
        budget = RetentionBudget([near, *others], max_drop, action, every)
        trainer, _ = fit(probe, shards, tmp_path, callbacks=(budget, *callbacks), **options)
        return probe, budget, trainer

    return made


def test_it_warns_once_a_check_and_changes_nothing(run, cola, model_folder, shards, tmp_path, said):
    plain = module(model_folder, LinearProbe(initial_scale=10.0), [InfoNCE()])
    fit(plain, shards, tmp_path / "plain")
    probe, budget, _ = run(every=4, others=[cola("still", Still)])
    assert [line.split(":")[0] for line in said()] == ["step 4", "step 6"]
    (fall, name, before, now), still = budget.drops
    assert still == (0.0, "still", 1.0, 1.0)
    assert (name, before) == ("near", 1.0)
    assert fall == 1 - now > DROP
    numbers = f"100.0% before training to {now:.1%}, {100 * fall:.1f} points of 5 allowed"
    assert said()[1] == f"step 6: near fell from {numbers}"
    assert same_weights(weights(probe), weights(plain))


def test_it_knows_the_last_step_where_lightning_estimates_another(run, said):
    scheduled = GradientAccumulationScheduler({0: 1, 1: 3})
    _, _, trainer = run(every=100, steps=-1, max_epochs=2, callbacks=(scheduled,))
    assert [line.split(":")[0] for line in said()] == [f"step {trainer.global_step}"] == ["step 4"]


class Falls(Callback):
    """Notes the worst fall after each step of a run that checks each."""

    def __init__(self):
        self.falls = []

    def on_train_batch_end(self, trainer, *arguments):
        (budget,) = (one for one in trainer.callbacks if isinstance(one, RetentionBudget))
        self.falls.append(budget.drops[0].fall)


def test_it_stops_and_keeps_the_last_weights_within_the_budget(run, tmp_path, model_folder, shards):
    noted = Falls()
    run(every=1, max_drop=0.999, callbacks=(noted,))
    first, worst = noted.falls[0], max(noted.falls)
    assert first < worst
    limit = (first + worst) / 2
    step = next(i for i, fall in enumerate(noted.falls, 1) if fall > limit)
    _, _, trainer = run("stop", max_drop=limit, every=1)
    assert trainer.global_step == step
    kept = torch.load(tmp_path / WITHIN, weights_only=True)
    assert kept["global_step"] == step - 1
    live = Noting()
    plain = module(model_folder, LinearProbe(initial_scale=10.0), [InfoNCE()])
    fit(plain, shards, tmp_path / "plain", callbacks=(live,))
    assert same_weights(kept["state_dict"], live.states[step - 2])


@pytest.mark.slow
def test_it_goes_back_to_the_largest_alpha_that_keeps_the_budget(run, near, model_folder):
    annealed, budget, _ = run("anneal", every=100)  # the last step alone
    assert budget.drops[0].fall <= DROP
    trained, other, _ = run(every=100)
    assert other.drops[0].fall > DROP
    line, kept = WiseFT(trained.backbone, trained.adapter), []
    for number in range(16):
        line.at(number / 16)
        if other._keeps_budget(quiet_trainer(), trained):
            kept.append(number / 16)
    line.at(max(kept))
    assert 0 < max(kept) < 15 / 16
    assert same_weights(weights(annealed), weights(trained))


def test_every_check_leaves_weights_within_the_budget(run, said):
    _, budget, trainer = run("anneal", every=1, max_drop=0.02, steps=3)
    assert trainer.global_step == 3
    assert budget.drops[0].fall <= 0.02
    assert any("weights set to alpha = " in line for line in said()[:-1])


def test_one_check_a_step_with_accumulated_gradients(run, said):
    run(every=1, max_drop=0.0, accumulate_grad_batches=2, steps=3)
    assert [line.split(":")[0] for line in said()] == ["step 1", "step 2", "step 3"]


def test_a_resumed_run_compares_with_the_model_before_training(run, tmp_path, near):
    _, whole, _ = run()
    run(die_at=4, save=True)
    last = next(tmp_path.glob("step*4.ckpt"))
    del near.first
    _, resumed, _ = run(resume=last)
    assert resumed.drops == whole.drops


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"action": "anneal", "callbacks": (EMA(),)}, "got EMA as well as the action 'anneal'"),
        ({"action": "anneal", "adapter": MMAdapter(heads=2, hidden=2)}, "which starts at random"),
    ],
)
def test_what_cannot_be_is_refused(run, options, line):
    with refused(line):
        run(**options)


def test_a_number_that_is_no_fraction_is_refused(run, near):
    near.unit = "rank"
    with refused("expected to watch near with RetentionBudget, got no fraction that is higher"):
        run()


def test_a_joint_adapter_is_compared_with_the_embeddings_of_its_backbone(run, near, model_folder):
    run(adapter=MMAdapter(heads=2, hidden=2), max_drop=0.999)
    scorer = Scorer(*attached({"backbone": module(model_folder).backbone.spec()}))
    run_suite([frozen := Near(near.path, near.images, name="frozen")], scorer)
    assert near.first.equal(frozen.first)


@pytest.mark.slow
def test_every_rank_acts_alike(near, model_folder, shards, tmp_path):
    one, other = run_ranks(2, tmp_path / "ranks", annealed, near, model_folder, shards, tmp_path)
    assert same_weights(one, other)


def annealed(rank, near, model_folder, shards, folder):
    """Weights at the end of a run on two ranks that anneals after each step."""
    probe = module(model_folder, LinearProbe(initial_scale=10.0), [InfoNCE()])
    budget = RetentionBudget([near], 0.02, "anneal", 1)
    options = {"devices": 2, "strategy": "ddp", "callbacks": (budget,), "steps": 3}
    fit(probe, shards, folder / str(rank), **options)
    assert budget.drops[0].fall <= 0.02
    return weights(probe)
