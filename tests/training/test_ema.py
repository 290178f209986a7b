"""The moving average of what is trained: its value, and where it stands in for the weights."""

import pytest
import torch
from pytorch_lightning.callbacks import Callback

from tests.runs import QUIET, fit, module, quiet_trainer, same_weights, weights
from vlmtune.adapters import LastBlocks, LinearProbe
from vlmtune.benchmarks.cola_multi import ColaMulti
from vlmtune.data import ShardDataModule, ShardSet
from vlmtune.evaluation.scorer import Scorer
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.training import EMA, BenchmarkCallback

pytestmark = QUIET

DECAY = 0.6


def made(model_folder, adapter=None, **options):
    adapter = adapter or LastBlocks(1, 1, learn_scale=True)
    options.setdefault("optimizer", lambda groups: torch.optim.AdamW(groups, lr=0.02))
    return module(model_folder, adapter, [InfoNCE()], **options)


def assert_near(state, want):
    assert state.keys() == want.keys()
    for name, value in state.items():
        torch.testing.assert_close(value.double(), want[name], rtol=1e-5, atol=1e-7)


class Noting(Callback):
    """Notes the weights at a hook, which is after each step unless said otherwise."""

    def __init__(self, hook="on_train_batch_end"):
        self.states = []
        setattr(self, hook, lambda trainer, one, *_: self.states.append(weights(one)))


def average(states, decay=DECAY, every=1, start=0):
    """The formula, in double precision."""
    mean = None
    for step, state in enumerate(states, 1):
        if step <= start or (step - start) % every:
            continue
        now = {name: value.double() for name, value in state.items()}
        mean = now if mean is None else {n: decay * mean[n] + (1 - decay) * now[n] for n in now}
    return mean


@pytest.mark.parametrize(("every", "start"), [(1, 0), (1, 4), (3, 1)])
def test_after_k_steps_it_is_the_formula(model_folder, shards, tmp_path, every, start):
    live, ema, one = Noting(), EMA(DECAY, every, start), made(model_folder)
    fit(one, shards, tmp_path, callbacks=(live, ema))
    want, got = average(live.states, DECAY, every, start), weights(one)  # left in the module
    assert_near(got, want)
    assert any(not value.equal(live.states[-1][name]) for name, value in got.items())


def test_before_the_first_step_that_counts_it_is_the_weights(model_folder, shards, tmp_path):
    live, one = Noting(), made(model_folder)
    fit(one, shards, tmp_path, steps=3, callbacks=(EMA(DECAY, start=5), live), save=True)
    assert same_weights(weights(one), live.states[-1])
    saved = torch.load(tmp_path / "stepstep=3.ckpt", weights_only=True)
    assert same_weights(saved["state_dict"], live.states[-1])


def test_nothing_frozen_is_copied_or_saved(model_folder, shards, tmp_path):
    one, ema = made(model_folder, LinearProbe()), EMA(DECAY)
    fit(one, shards, tmp_path, steps=2, callbacks=(ema,), save=True)
    trained = weights(one)
    assert ema._average.keys() == trained.keys()
    assert all(name.startswith("adapter.") for name in ema._average)
    saved = torch.load(tmp_path / "stepstep=2.ckpt", weights_only=True)
    assert saved["state_dict"].keys() == saved["live_state_dict"].keys() == trained.keys()
    values = sum(value.numel() for value in trained.values())
    assert (tmp_path / "stepstep=2.ckpt").stat().st_size < 4 * 4 * values + 60_000


@pytest.mark.parametrize(("every", "deaths"), [(1, (2,)), (2, (3, 4))])
def test_killed_and_resumed_is_as_if_never_killed(model_folder, shards, tmp_path, every, deaths):
    whole, live = made(model_folder), Noting()
    _, uninterrupted = fit(whole, shards, tmp_path / "whole", callbacks=(EMA(DECAY, every), live))
    for die_at in deaths:
        folder, callbacks = tmp_path / f"killed {die_at}", (EMA(DECAY, every),)
        one, again, later = made(model_folder), made(model_folder), Noting()
        _, first = fit(one, shards, folder, callbacks=callbacks, save=True, die_at=die_at)
        checkpoint, callbacks = folder / f"stepstep={die_at}.ckpt", (EMA(DECAY, every), later)
        _, second = fit(again, shards, folder, callbacks=callbacks, resume=checkpoint)
        assert first.losses + second.losses == uninterrupted.losses
        assert same_weights(later.states[-1], live.states[-1])
        assert same_weights(weights(again), weights(whole))
        assert not same_weights(weights(again), later.states[-1])


def test_resumed_without_it_is_as_if_it_had_never_been(model_folder, shards, tmp_path):
    whole, one = made(model_folder), made(model_folder)
    _, uninterrupted = fit(whole, shards, tmp_path / "whole")
    _, first = fit(one, shards, tmp_path, callbacks=(EMA(DECAY),), save=True, die_at=3)
    for step in (2, 3):
        again, plain = made(model_folder), tmp_path / f"plain {step}"
        checkpoint = tmp_path / f"stepstep={step}.ckpt"
        _, second = fit(again, shards, plain, resume=checkpoint, save=True)
        assert first.losses[:step] + second.losses == uninterrupted.losses
        assert same_weights(weights(again), weights(whole))
        saved = torch.load(plain / "stepstep=6.ckpt", weights_only=True)
        assert same_weights(saved["state_dict"], weights(whole))
        assert not {"live_state_dict", "average_state_dict"} & saved.keys()


def test_training_on_after_the_end_is_as_if_it_had_not_ended(model_folder, shards, tmp_path):
    constant = {"warmup": 0.0, "final_lr": 1.0}
    whole, live = made(model_folder, **constant), Noting()
    fit(whole, shards, tmp_path, steps=6, callbacks=(EMA(DECAY), live))
    one = made(model_folder, **constant)
    trainer, _ = fit(one, shards, tmp_path, steps=3, callbacks=(EMA(DECAY),))
    trainer.save_checkpoint(tmp_path / "end.ckpt")  # the average is in the module
    again = made(model_folder, **constant)
    fit(again, shards, tmp_path, callbacks=(EMA(DECAY),), resume=tmp_path / "end.ckpt")
    assert same_weights(weights(again), weights(whole))

    starts = Noting("on_train_start")
    trainer.callbacks.append(starts)
    trainer.fit_loop.epoch_loop.max_steps = 4
    trainer.fit(one, datamodule=ShardDataModule([ShardSet(str(shards))], batch_size=4))
    assert [same_weights(state, live.states[2]) for state in starts.states] == [True]


def test_another_module_starts_anew(model_folder, shards, tmp_path):
    ema = EMA(DECAY)
    fit(made(model_folder, seed=1), shards, tmp_path, callbacks=(ema,))
    one, fresh = made(model_folder), made(model_folder)
    fit(one, shards, tmp_path, callbacks=(ema,))
    fit(fresh, shards, tmp_path, callbacks=(EMA(DECAY),))
    assert same_weights(weights(one), weights(fresh))


def test_a_checkpoint_without_an_average_starts_one(model_folder, shards, tmp_path):
    fit(made(model_folder), shards, tmp_path, steps=3, save=True)
    live, one = Noting(), made(model_folder)
    resume = tmp_path / "stepstep=3.ckpt"
    fit(one, shards, tmp_path, callbacks=(live, EMA(DECAY)), resume=resume)
    want = average(live.states)
    assert_near(weights(one), want)


@pytest.fixture
def measured(monkeypatch):
    def note(one):
        run, states = ColaMulti.run, []

        def noting(*arguments):
            states.append(weights(one))
            return run(*arguments)

        monkeypatch.setattr(ColaMulti, "run", noting)
        return states

    return note


@pytest.mark.parametrize("first", [True, False])
def test_evaluation_measures_the_average(model_folder, shards, tmp_path, cola, first, measured):
    one, live = made(model_folder), Noting()
    measured = measured(one)
    evaluation, ema = BenchmarkCallback([cola()], every_n_epochs=0, every_n_steps=2), EMA(DECAY)
    both = (ema, evaluation) if first else (evaluation, ema)
    fit(one, shards, tmp_path, callbacks=(live, *both), save=True)
    assert len(measured) == 3
    for number, got in zip((2, 4, 6), measured, strict=True):
        want = average(live.states[:number])
        assert_near(got, want)
        checkpoint = tmp_path / f"stepstep={number}.ckpt"  # what is measured is what is saved
        assert same_weights(torch.load(checkpoint, weights_only=True)["state_dict"], got)
    metrics = cola().run(Scorer(one.backbone, one.adapter)).metrics
    assert evaluation.results["cola"].metrics == metrics
    # Resumed without a step left, it does not add the last step again.
    again, both = made(model_folder), (BenchmarkCallback([cola()]), EMA(DECAY))
    fit(again, shards, tmp_path, callbacks=both, resume=tmp_path / "stepstep=6.ckpt")
    assert same_weights(weights(again), weights(one))


def test_validation_sees_the_average_and_gives_the_weights_back(model_folder, shards, tmp_path):
    live, seen_at = Noting(), Noting("on_validation_epoch_start")
    after_it = Noting("on_validation_end")
    callbacks = (live, EMA(DECAY), seen_at, after_it)
    fit(made(model_folder), shards, tmp_path, callbacks=callbacks, val=True)
    assert len(seen_at.states) == 2
    for number, seen, after in zip((3, 6), seen_at.states, after_it.states, strict=True):
        want = average(live.states[:number])
        assert_near(seen, want)
        assert same_weights(after, live.states[number - 1])


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_a_checkpoint_has_its_average_measured(
    model_folder, shards, tmp_path, cola, stage, measured
):
    one = made(model_folder)
    fit(one, shards, tmp_path, steps=4, callbacks=(EMA(DECAY),), save=True)
    again = made(model_folder)
    measured = measured(again)
    evaluation = BenchmarkCallback([cola()])
    trainer = quiet_trainer(callbacks=[evaluation, EMA(DECAY)])
    val = [ShardSet(str(shards))]
    data = ShardDataModule(val, batch_size=4, val=val)
    measure = getattr(trainer, stage)
    path = tmp_path / "stepstep=4.ckpt"
    options = {"ckpt_path": path, "weights_only": True, "verbose": False}
    (logged,) = measure(again, datamodule=data, **options)
    assert [same_weights(got, weights(one)) for got in measured] == [True]
    accuracy = evaluation.results["cola"].metrics["accuracy"].value
    assert logged["cola/accuracy"] == pytest.approx(accuracy)
