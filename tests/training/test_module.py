import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from pytorch_lightning.callbacks import Callback, LambdaCallback, ModelCheckpoint

from tests.refusals import refused
from tests.runs import QUIET, fit, module, quiet_trainer, same_weights, weights
from vlmtune.adapters import LinearProbe, LoRA, MMAdapter, ZeroShot
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives import InfoNCE, Objective, PairBCE
from vlmtune.pairs.base import PairPolicy
from vlmtune.pairs.mixed_pairs import MixedPairs
from vlmtune.training.finite import finite_gradients
from vlmtune.training.optimization import warmup_cosine

pytestmark = QUIET


def probe(folder, **options):
    return module(folder, LinearProbe(initial_scale=10.0), [InfoNCE()], **options)


def transformer(folder, **options):
    adapter = MMAdapter(heads=2, hidden=2, dropout=0.0)
    return module(folder, adapter, [PairBCE(balanced=True)], pairs=MixedPairs(1, 1, 2), **options)


PINNED = {
    probe: [2.076834, 2.145671, 2.034499, 2.075767, 2.098484, 2.017916],
    transformer: [0.806534, 0.727614, 0.737393, 0.749785, 0.810624, 0.785505],
}


@pytest.mark.parametrize("make", PINNED, ids=lambda make: make.__name__)
def test_pinned_losses_with_and_without_the_store(
    make, model_folder, shards, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))  # in a config no shell replaces ~
    _, plain = fit(make(model_folder), shards, tmp_path)
    assert plain.decoded == [True] * 6
    assert plain.losses == pytest.approx(PINNED[make], rel=1e-4)
    _, stored = fit(make(model_folder, store="~/store"), shards, tmp_path)
    assert len(list((tmp_path / "store").glob("images-*.json"))) == 1
    assert stored.decoded == [False] * 6
    assert stored.losses == pytest.approx(plain.losses, rel=1e-4)


def test_the_total_is_the_weighted_sum(model_folder, shards, tmp_path):
    objectives = [InfoNCE(weight=0.5), PairBCE(weight=3.0), PairBCE(weight=2.0, balanced=True)]
    made = module(model_folder, LinearProbe(initial_scale=10.0), objectives)
    trainer, watch = fit(made, shards, tmp_path, steps=3, val=True)
    logged = trainer.callback_metrics
    total = 0.5 * logged["train/InfoNCE"] + 3 * logged["train/PairBCE"]
    total += 2 * logged["train/PairBCE-2"]
    assert watch.losses[-1] == pytest.approx(total.item())
    assert logged["train/loss"].item() == pytest.approx(total.item())
    names = ("InfoNCE", "PairBCE", "PairBCE-2", "loss", "accuracy")
    assert {f"val/{name}" for name in names} <= logged.keys()
    assert logged["val/loss"].isfinite()


def test_a_run_depends_on_its_seed(model_folder, shards, tmp_path):
    made = (module(model_folder, seed=seed) for seed in (1, 1, 2))
    runs = [fit(one, shards, tmp_path, steps=2)[1].losses for one in made]
    assert runs[0] == runs[1] != runs[2]


def test_each_batch_of_each_rank_draws_anew(model_folder):
    made = probe(model_folder)
    seeds = set()
    for step, rank, batch in itertools.product(range(3), range(3), range(2)):
        counts = {"global_step": step, "global_rank": rank, "accumulate_grad_batches": 2}
        made._trainer = SimpleNamespace(**counts)
        seeds.add(made._step_seed(2 * step + batch))
    assert len(seeds) == 18


@pytest.mark.parametrize(
    ("warmup", "final", "want"),
    [
        (0.0, 0.0, [1, *(0.5 + 0.5 * math.cos(math.pi * i / 5) for i in range(5))]),
        (0.5, 0.0, [1 / 3, 2 / 3, 1, 1, 0.75, 0.25]),
        (0.5, 0.2, [1 / 3, 2 / 3, 1, 1, 0.8, 0.4]),
        (1.0, 0.0, [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1]),
    ],
)
def test_the_learning_rate_rises_and_falls(warmup, final, want):
    factor = warmup_cosine(6, warmup, final)
    assert [factor(step) for step in range(6)] == pytest.approx(want)


def test_a_fit_drops_out_updates_and_nothing_of_the_backbone(model_folder, shards, tmp_path):
    """Lightning keeps the modes that it finds."""
    runs = []
    for dropout in (0.0, 0.5):
        made = module(model_folder, LoRA(rank=2, dropout=dropout), [InfoNCE()])
        made.eval()
        runs.append(fit(made, shards, tmp_path, steps=4)[1].losses)
        modes = {type(part).__name__ for part in made.backbone.modules() if part.training}
        assert modes == {"LowRank"}
        made.eval()
        assert not any(part.training for part in made.modules())
    assert runs[0][0] == runs[1][0]  # an update is zero at the start
    assert runs[0] != runs[1]


def test_a_resumed_run_takes_the_options_of_the_config(model_folder, shards, tmp_path, capsys):
    def adamw(lr, decay):
        return lambda groups: torch.optim.AdamW(groups, lr=lr, weight_decay=decay)

    fit(probe(model_folder, optimizer=adamw(0.01, 0.1)), shards, tmp_path, 3, save=True)
    path = tmp_path / "stepstep=3.ckpt"
    _, same = fit(probe(model_folder, optimizer=adamw(0.01, 0.1)), shards, tmp_path, resume=path)
    assert "resumed with" not in capsys.readouterr().out
    made = probe(model_folder, optimizer=adamw(0.001, 0.2), warmup=0.5, final_lr=0.2)
    trainer, lower = fit(made, shards, tmp_path, resume=path)
    assert "resumed with another lr, weight_decay of the optimizer" in capsys.readouterr().out
    assert same.rates == pytest.approx(
        [0.01 * (1 + math.cos(math.pi * i / 5)) / 2 for i in (2, 3, 4)]
    )
    assert lower.rates == pytest.approx([0.001, 0.0008, 0.0004])
    assert {group["weight_decay"] for group in trainer.optimizers[0].param_groups} == {0.0, 0.2}


@pytest.mark.parametrize(("every", "by_epoch"), [(2, None), (3, 1)])
def test_what_was_due_is_run_after_a_resume(model_folder, shards, tmp_path, every, by_epoch):
    """A run of six steps is killed behind each checkpoint; an epoch has three steps."""

    class Scores(Callback):
        """The score of each validated step, and how many batches are complete by then."""

        def __init__(self):
            self.seen = {}
            self.epochs = {}  # the step at which each ended

        def on_train_epoch_end(self, trainer, pl_module):
            self.epochs[trainer.current_epoch] = trainer.global_step

        def on_validation_end(self, trainer, pl_module):
            score = float(trainer.callback_metrics["val/loss"])
            completed = trainer.fit_loop.epoch_loop.batch_progress.total.completed
            assert trainer.global_step not in self.seen
            self.seen[trainer.global_step] = score, completed

    options = {"val": True, "val_check_interval": every, "check_val_every_n_epoch": by_epoch}
    whole = Scores()
    fit(probe(model_folder), shards, tmp_path, callbacks=(whole,), save=True, **options)
    assert list(whole.seen) == list(range(every, 7, every))
    assert whole.epochs == {0: 3, 1: 6}
    for step in (2, 3, 4):  # before, at and behind the end of an epoch
        resumed = Scores()
        path = tmp_path / f"stepstep={step}.ckpt"
        fit(probe(model_folder), shards, tmp_path, callbacks=(resumed,), resume=path, **options)
        due = {number: seen for number, seen in whole.seen.items() if number >= step}
        assert resumed.seen == due
        assert resumed.epochs == {epoch: end for epoch, end in whole.epochs.items() if end >= step}
    # A number of training is that of the checkpoint, until the first step.
    resumed = Scores()
    watched = ModelCheckpoint(tmp_path / "best", monitor="train/loss")
    path = tmp_path / f"stepstep={every}.ckpt"
    options = {**options, "callbacks": (resumed, watched), "enable_checkpointing": True}
    fit(probe(model_folder), shards, tmp_path, resume=path, **options)
    assert resumed.seen == whole.seen


@pytest.mark.parametrize(
    ("die_at", "stored"),
    [
        (2, False),
        (3, True),  # at the end of an epoch
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((2, True), (3, False), (4, False), (4, True))
        ),
    ],
)
def test_killed_and_resumed_is_as_if_never_killed(model_folder, shards, tmp_path, die_at, stored):
    options = {"pairs": MixedPairs(1, 1, 2), "store": str(tmp_path / "store") if stored else None}
    whole = module(model_folder, **options)
    _, uninterrupted = fit(whole, shards, tmp_path / "whole")
    folder = tmp_path / "killed"
    _, first = fit(module(model_folder, **options), shards, folder, save=True, die_at=die_at)
    assert len(first.losses) == die_at
    made = module(model_folder, **options)
    torch.manual_seed(99)  # what else happens must not matter
    _, second = fit(made, shards, folder, resume=folder / f"stepstep={die_at}.ckpt")
    assert first.losses + second.losses == uninterrupted.losses
    assert first.rates + second.rates == uninterrupted.rates
    assert same_weights(weights(made), weights(whole))


@pytest.fixture(scope="module")
def saved(model_folder, shards, tmp_path_factory):
    """A checkpoint of a probe, which no test may change."""
    folder = tmp_path_factory.mktemp("saved")
    trainer, _ = fit(probe(model_folder), shards, folder, steps=1)
    trainer.save_checkpoint(folder / "probe.ckpt")
    return folder / "probe.ckpt"


def stopped(made, shards, folder, **options):
    with refused() as error:
        fit(made, shards, folder, **options)
    return str(error.value)


def test_another_checkpoint_is_refused(model_folder, other_folder, shards, tmp_path, saved):
    other = module(model_folder, LinearProbe(initial_scale=5.0), [InfoNCE()])
    assert stopped(other, shards, tmp_path, resume=saved) == (
        "expected a checkpoint of this adapter, got adapter.init_args.initial_scale 5.0 here, 10.0 "
        "in the checkpoint: use the config it was trained with"
    )
    for made, checkpoint, said in (
        (transformer(model_folder), saved, "LinearProbe"),
        (probe(other_folder), saved, "with other weights: use that backbone"),
    ):
        assert said in stopped(made, shards, tmp_path, resume=checkpoint)
    content = torch.load(saved)
    del content["vlmtune"]  # as another project of Lightning writes it
    torch.save(content, tmp_path / "other.ckpt")
    said = stopped(probe(model_folder), shards, tmp_path, resume=tmp_path / "other.ckpt")
    assert "expected a vlmtune checkpoint" in said


def test_a_run_needs_something_to_train_and_a_store_a_datamodule(model_folder, shards, tmp_path):
    with refused("ZeroShot has no trained parameter"):
        fit(module(model_folder, ZeroShot(), [InfoNCE()]), shards, tmp_path)
    made = probe(model_folder, store=str(tmp_path / "store"))
    with refused("expected a datamodule"):
        quiet_trainer(max_steps=1).fit(made, train_dataloaders=[], val_dataloaders=[])


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad])
def test_a_checkpoint_of_another_optimizer_is_an_error(
    model_folder, shards, tmp_path, saved, optimizer
):
    made = probe(model_folder, optimizer=optimizer)
    assert stopped(made, shards, tmp_path, resume=saved) == (
        f"expected a checkpoint of {optimizer.__name__}, got one of AdamW: resume with that "
        "optimizer"
    )


class CountsCalls(Objective):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, scores, targets):
        self.calls += 1
        return self.loss(scores.values)


class Breaks(CountsCalls):
    """A loss that is no number from the third step on."""

    def loss(self, values):
        return values.mean() * (torch.nan if self.calls > 2 else 1)


class Steep(CountsCalls):
    """A finite loss whose gradient is 0 times infinity in the third batch."""

    def loss(self, values):
        return (values * (0 if self.calls == 3 else 1)).square().sqrt().mean()


class Batch(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.batch = batch


class Forgetful(Objective):
    """Does not call the constructor of its base."""

    def __init__(self) -> None:
        self.margin = 0.1

    def forward(self, scores, targets):
        return scores.values.mean()


class Transposed(PairPolicy):
    def __call__(self, targets, generator, reference=None):
        return targets.truth.T[:1]


def test_a_wrong_plug_in_is_called_by_its_name(model_folder, shards, tmp_path):
    with refused(r"super\(\).__init__\(weight\) in the __init__ of Forgetful, got none: call it"):
        module(model_folder, objectives=[Forgetful()])
    made = module(model_folder, pairs=Transposed())
    with refused(r"torch.bool \[\d+, \d+\] from Transposed, got torch.bool \[1, \d+\]: return"):
        fit(made, shards, tmp_path)


def test_pairs_of_an_adapter_that_scores_all_have_no_effect(model_folder, caplog):
    probe(model_folder, pairs=MixedPairs())
    assert "pairs have no effect: LinearProbe scores all pairs" in caplog.text


def test_a_loss_that_is_no_number_stops_the_run(model_folder, shards, tmp_path):
    made = module(model_folder, LinearProbe(), [InfoNCE(), Breaks()])
    said = stopped(made, shards, tmp_path)
    path = tmp_path / "last-before-nan.ckpt"
    assert "expected a finite loss, got nan from Breaks at step 2 (first record 'r" in said
    assert f"weights before this step are in {path}" in said
    saved = torch.load(path, weights_only=True)
    assert saved["global_step"] == 2
    assert all(saved["state_dict"][name].equal(value) for name, value in weights(made).items())


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_gradient_that_is_no_number_stops_the_run(model_folder, shards, tmp_path, accumulated):
    made, first = module(model_folder, LinearProbe(), [InfoNCE(), Steep()]), Batch()
    options = {"callbacks": (first,), "accumulate_grad_batches": accumulated}
    said = stopped(made, shards, tmp_path, gradient_clip_val=1.0, **options)
    path, step = tmp_path / "last-before-nan.ckpt", 2 // accumulated
    key = first.batch.keys[0]
    assert said == (
        "expected finite gradients, got NaN or infinity in the gradient of "
        f"'{next(n for n, p in made.named_parameters() if p.requires_grad)}' at step {step} "
        f"(its batch begins with record {key!r}): weights before this step are in {path}; "
        "resume from them with a lower learning rate or 32-bit precision"
    )
    saved = torch.load(path, weights_only=True)
    assert saved["global_step"] == step
    assert all(value.isfinite().all() for value in saved["state_dict"].values())
    assert all(saved["state_dict"][name].equal(value) for name, value in weights(made).items())
    again = module(model_folder, LinearProbe(), [InfoNCE()])
    options["callbacks"] = ()
    trainer, watch = fit(again, shards, tmp_path, steps=4, resume=path, **options)
    assert trainer.global_step == 4
    assert all(map(math.isfinite, watch.losses))


def test_large_gradients_are_finite():
    kinds = (torch.float32, torch.bfloat16, torch.float64)
    some = [torch.nn.Parameter(torch.zeros(3, dtype=kind)) for kind in kinds]
    some += [torch.nn.Parameter(torch.zeros(size)) for size in (0, 2)]
    for one in some[:-1]:
        one.grad = torch.full_like(one, 3e38)  # its square is infinite, and so is the sum
    assert finite_gradients(some, ProcessGroup())
    assert finite_gradients(some[-1:], ProcessGroup())
    for one in some[:3]:
        for wrong in (torch.nan, torch.inf, -torch.inf):
            one.grad[1] = wrong
            assert not finite_gradients(some, ProcessGroup())
        one.grad.zero_()


def test_infinite_gradients_are_the_scalers_where_there_is_one(model_folder, shards, tmp_path):
    class Scaled(Callback):
        def on_train_start(self, trainer, pl_module):
            trainer.precision_plugin.scaler = object()

    made = module(model_folder, LinearProbe(), [InfoNCE(), Steep()])
    said = stopped(made, shards, tmp_path, callbacks=(Scaled(),))
    assert "at step 3" in said  # nobody kept the weights from it here
    assert "weights are not finite either" in said


class Spoils(LinearProbe):
    """Gives no number for one image, or for one text, of the third batch."""

    def __init__(self, image=None, text=None) -> None:
        super().__init__()
        self.spoilt = {"image": image, "text": text}
        self.calls = {"image": 0, "text": 0}

    def embed_image(self, image):
        return self._spoil("image", super().embed_image(image))

    def embed_text(self, text):
        return self._spoil("text", super().embed_text(text))

    def _spoil(self, side, rows):
        self.calls[side] += 1
        row = self.spoilt[side]
        if row is None or self.calls[side] < 3:
            return rows
        factors = torch.ones(len(rows), 1)
        factors[row] = torch.inf
        return rows * factors


class Certain(LinearProbe):
    """Gives a pair an infinite score."""

    def compare(self, image, text):
        scores = super().compare(image, text)
        scores[0, 0] = torch.inf
        return scores


def test_an_infinite_score_stops_training_though_its_loss_is_0(model_folder, shards, tmp_path):
    made = module(model_folder, Certain(), [PairBCE()])
    assert "got NaN or infinity at step 0" in stopped(made, shards, tmp_path)


@pytest.mark.parametrize(("side", "row"), [("image", 5), ("text", 6), ("text", 1)])
def test_scores_that_are_no_numbers_name_their_record(model_folder, shards, tmp_path, side, row):
    made, keys = module(model_folder, Spoils(**{side: row}), [InfoNCE(), PairBCE()]), Batch()
    said = stopped(made, shards, tmp_path, callbacks=(keys,))
    batch = keys.batch
    image = row if side == "image" else batch.targets.same_group[:, row].nonzero()[0, 0]
    key = batch.keys[int(batch.image_group[image])]
    want = "expected finite scores for InfoNCE, PairBCE, got NaN or infinity at step 2 "
    assert said.startswith(f"{want}(first record {key!r}): weights before this step are in ")
    assert (tmp_path / "last-before-nan.ckpt").is_file()


class Remembers(Objective):
    """Grows with every step it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, scores, targets):
        self.steps.add_(1)
        return scores.values.square().mean() * self.steps


def test_what_an_objective_remembers_is_resumed(model_folder, shards, tmp_path):
    def made():
        return module(model_folder, LinearProbe(), [InfoNCE(), Remembers()])

    _, uninterrupted = fit(made(), shards, tmp_path / "whole")
    _, first = fit(made(), shards, tmp_path, save=True, die_at=3)
    _, second = fit(made(), shards, tmp_path, resume=tmp_path / "stepstep=3.ckpt")
    assert first.losses + second.losses == uninterrupted.losses


class Needy(InfoNCE):
    def __init__(self, *needs) -> None:
        super().__init__()
        self.needs = frozenset(needs)


@pytest.mark.parametrize(
    ("adapter", "need", "said"),
    [
        (MMAdapter(heads=2), "embedded", "expected an adapter with one embedding per image"),
        (MMAdapter(heads=2), "phrases", "expected an adapter with one embedding per image"),
        (MMAdapter(heads=2), "tokens", "got MMAdapter, which gives none: choose a DualAdapter"),
        (LinearProbe(), "tokens", "expected an adapter that gives tokens"),
    ],
)
def test_an_objective_that_needs_more_is_refused(model_folder, adapter, need, said):
    with refused(f"{said}.* or remove the Needy$"):
        module(model_folder, adapter, [InfoNCE(), Needy(need)])


def test_a_backbone_without_pooled_embeddings_has_no_reference(model_folder, monkeypatch):
    monkeypatch.setattr(OpenClip, "fits", lambda *_: "it matches pairs")
    with refused(r"got OpenClip \(it matches pairs\): choose a dual encoder"):
        module(model_folder, LinearProbe(), [Needy("reference")])


@pytest.mark.parametrize("stored", [False, True])
def test_the_reference_is_the_untrained_model(model_folder, shards, tmp_path, stored):
    differences = []

    class Drift(InfoNCE):
        needs = frozenset({"reference"})

        def shard_loss(self, shard, group):
            drift = shard.rows.values - shard.rows.reference
            differences.append(drift.abs().max().item())
            return super().shard_loss(shard, group)

    store = str(tmp_path / "store") if stored else None
    made = module(model_folder, LinearProbe(), [Drift()], store=store, warmup=0.0)
    fit(made, shards, tmp_path, steps=3)
    assert differences[0] < 1e-4
    assert differences[1] > 0.05


def test_an_argument_that_no_checkpoint_can_hold_stops_the_run_before_its_first_step(
    model_folder, shards, tmp_path
):
    class Scaled(LinearProbe):
        def __init__(self, dtype: torch.dtype = torch.float32) -> None:
            super().__init__()

    run = module(model_folder, Scaled(), [InfoNCE()])
    started = []
    watch = LambdaCallback(on_train_start=lambda *_: started.append(run))
    with refused("dtype of Scaled, got dtype"):
        fit(run, shards, tmp_path, callbacks=(watch,), save=True)
    assert not started
