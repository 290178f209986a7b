"""The laws of an objective, held by every plug-in that has a YAML in configs/plugins/objectives."""

import importlib
import inspect
import itertools
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import yaml

from tests.refusals import refused
from tests.scored import parts, scored, share_of
from vlmtune.config import instantiate
from vlmtune.errors import UserError
from vlmtune.objectives.base import Objective, ShardedObjective
from vlmtune.types import Scores, Targets

CONFIGS = sorted((Path(__file__).parents[2] / "configs/plugins/objectives").glob("*.yaml"))


def variants(config):
    """The YAML's objective with every combination of its boolean options."""
    spec = yaml.safe_load(config.read_text())
    module, _, name = spec["class_path"].rpartition(".")
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    flags = [key for key, p in parameters.items() if isinstance(p.default, bool)]
    for values in itertools.product((False, True), repeat=len(flags)):
        chosen = dict(zip(flags, values, strict=True))
        yield pytest.param(
            {**spec, "init_args": {**spec.get("init_args", {}), **chosen}},
            id="-".join([config.stem, *(key for key, value in chosen.items() if value)]),
        )


VARIANTS = [variant for config in CONFIGS for variant in variants(config)]
assert VARIANTS


@pytest.fixture(params=VARIANTS)
def spec(request):
    return request.param


@pytest.fixture
def objective(spec) -> Objective:
    # In evaluation mode a loss that keeps a state leaves it as it is.
    return instantiate(spec, Objective).eval()


def batch(exhaustive: bool = True) -> Targets:
    """Two pairs of pairs, an image with two true captions, and an image with a hard negative."""
    truth, own = torch.zeros(6, 8, dtype=torch.bool), torch.zeros(6, 8, dtype=torch.bool)
    truth[range(4), range(4)] = True
    own[:2, :2] = own[2:4, 2:4] = True
    truth[4, 4:6] = own[4, 4:6] = True
    truth[5, 6] = True
    own[5, 6:8] = True
    truth[5, 0] = exhaustive  # true across groups
    return Targets(truth, torch.ones_like(own) if exhaustive else own, own)


def noise(seed: int = 0) -> torch.Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("distillation.Distillation", {"temperature": 0.0}),
        ("fsc_clip.FSCClip", {"smoothing": 1.0}),
        ("ce_clip.CEClip", {"rank": float("inf")}),
        ("cyclip.CyClip", {"in_modal": float("nan")}),
        ("eqsim.EqSim", {"k": 0}),
    ],
    ids=str,
)
def test_the_types_of_a_spec_hold_its_bounds(name, options):
    path = f"vlmtune.objectives.{name}"
    with pytest.raises(UserError, match=f"as {next(iter(options))} of {path}"):
        instantiate({"class_path": path, "init_args": options}, Objective)


def test_scores_without_what_it_needs_are_an_error(objective):
    bare = Scores.full(noise())
    if "embedded" in objective.needs:
        with refused(f"expected scores with embeddings for {objective.name}"):
            objective(bare, batch())
    if "reference" in objective.needs:
        with refused("expected the frozen backbone's scores"):
            objective(bare, batch())


def test_a_finite_scalar_with_finite_gradients(objective):
    for exhaustive in [True, False]:
        for scale in (0.0, 1.0, 100.0, 1e4):
            values = (scale * noise()).requires_grad_()
            if scale == 1e4:  # an exponential of such scores has no number in single precision
                values = values.detach().float().requires_grad_()
            loss = objective(scored(values), batch(exhaustive))
            assert loss.shape == ()
            assert loss.isfinite()
            (gradient,) = torch.autograd.grad(loss, values)
            assert gradient.isfinite().all()
            if scale == 1.0:
                assert gradient.any()


def test_single_precision(objective):
    wide = objective(scored(noise()), batch())
    narrow = objective(scored(noise().float()), batch())
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.double(), wide, rtol=1e-4, atol=1e-5)


def test_half_precision(objective):
    values = noise().bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = objective(scored(values), batch())
    loss.backward()
    assert loss.isfinite()
    assert values.grad.isfinite().all()


def test_going_down_the_gradient_lowers_the_loss(objective):
    values = noise().requires_grad_()
    before = objective(scored(values), batch())
    (gradient,) = torch.autograd.grad(before, values)
    after = objective(scored(values.detach() - 1e-3 * gradient), batch())
    assert after < before


def test_the_order_of_images_and_texts_does_not_matter(objective):
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        rows, columns = (
            torch.randperm(6, generator=generator),
            torch.randperm(8, generator=generator),
        )
        targets, values = batch(), noise(seed)
        whole = (targets.truth, targets.known, targets.same_group)
        moved = Targets(*(x[rows][:, columns] for x in whole))
        got = objective(scored(values[rows][:, columns]), moved)
        torch.testing.assert_close(got, objective(scored(values), targets))


def test_perfect_scores_cost_no_more_than_shuffled_ones(objective):
    for seed in range(5):
        if objective.regulariser:
            return
        targets = batch()
        perfect = 10.0 * targets.truth.double() - 5
        order = torch.randperm(48, generator=torch.Generator().manual_seed(seed))
        shuffled = perfect.flatten()[order].view(6, 8)
        best, worst = (objective(scored(values), targets) for values in (perfect, 0 - perfect))
        assert best <= objective(scored(shuffled), targets)
        assert best < worst


def test_what_was_not_computed_is_not_read(objective):
    for seed in range(3):
        if "embedded" in objective.needs:  # a dual adapter computes all scores
            return
        computed = noise(seed) > 0
        values = (noise() * computed).requires_grad_()
        loss = objective(scored(values, computed), batch())
        (gradient,) = torch.autograd.grad(loss, values)
        assert loss.isfinite()
        assert not gradient[~computed].any()
        spoilt = torch.where(computed, values, 50.0)
        torch.testing.assert_close(objective(scored(spoilt, computed), batch()), loss)


def test_nothing_computed_costs_nothing(objective):
    if "embedded" in objective.needs:
        return
    values = torch.zeros(6, 8, requires_grad=True)
    loss = objective(scored(values, torch.zeros(6, 8, dtype=torch.bool)), batch())
    assert loss == 0
    loss.backward()  # a rank without pairs must still take part
    assert not values.grad.any()


# Images and texts of each rank, one of which has nothing at all; "split" cuts two groups, and one
# of its ranks has no text.
RANKS = {
    "one": [(slice(0, 6), slice(0, 8))],
    "three": [(slice(0, 2), slice(0, 2)), (slice(2, 2), slice(2, 2)), (slice(2, 6), slice(2, 8))],
    "split": [(slice(0, 3), slice(0, 5)), (slice(3, 4), slice(5, 5)), (slice(4, 6), slice(5, 8))],
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("ranks", RANKS)
def test_the_shares_of_all_ranks_add_up_to_the_whole(spec, ranks, training):
    whole, shared = (instantiate(spec, Objective).train(training) for _ in range(2))
    if not isinstance(shared, ShardedObjective):
        return
    targets = batch()
    values = (noise() + 2 * targets.truth).requires_grad_()  # true pairs lead, as a state may note
    for _ in range(2):  # a loss that keeps a state keeps the same one
        scores = scored(values)
        loss = whole(scores, targets)
        shares = [share_of(scores, targets, *rank) for rank in RANKS[ranks]]
        together = torch.stack(parts(shared, shares)).sum()
        torch.testing.assert_close(together, loss)
        losses = (loss, together)
        want, got = (torch.autograd.grad(x, values, retain_graph=True)[0] for x in losses)
        torch.testing.assert_close(got, want)


def test_a_batch_of_one_kind(objective):
    for true in [True, False]:
        everything = torch.full((3, 3), true)
        values = noise()[:3, :3].requires_grad_()
        known = torch.ones_like(everything)
        loss = objective(scored(values), Targets(everything, known, known))
        loss.backward()
        assert loss.isfinite()
        assert values.grad.isfinite().all()


def test_the_weight_is_left_to_the_sum(spec):
    heavy = instantiate({**spec, "init_args": {**spec["init_args"], "weight": 3.0}}, Objective)
    assert heavy.weight == 3.0
    losses = (one(scored(noise()), batch()) for one in (heavy, instantiate(spec, Objective)))
    torch.testing.assert_close(*losses)
    for weight in (-1.0, float("nan"), float("inf")):
        with refused("as weight of"):
            instantiate({**spec, "init_args": {**spec["init_args"], "weight": weight}}, Objective)


def test_no_process_group_and_the_spec_makes_it_again(objective):
    assert not dist.is_initialized()
    again = instantiate(objective.spec(), Objective)
    assert again.spec() == objective.spec()
    assert again(scored(noise()), batch()) == objective(scored(noise()), batch())


def test_a_loss_for_each_text_is_no_loss():
    class Vector(Objective):
        def forward(self, scores, targets):
            return scores.values.mean(dim=0)

    with refused(r"expected one number from Vector, got \[\d+\]: take the mean"):
        Vector()(scored(noise()), batch())
