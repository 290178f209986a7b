"""The laws of a pair policy, held by every plug-in that has a YAML in configs/plugins/pairs."""

import importlib
import inspect
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from vlmtune.config import instantiate
from vlmtune.pairs.base import PairPolicy
from vlmtune.types import Targets

CONFIGS = sorted((Path(__file__).parents[2] / "configs/plugins/pairs").glob("*.yaml"))
assert CONFIGS
FEW = {"negatives": 2, "hard": 1, "mined": 1}


def variants(config):
    """The YAML's policy, once with few negatives of each kind, and with each boolean option."""
    spec = yaml.safe_load(config.read_text())
    module, _, name = spec["class_path"].rpartition(".")
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    few = {key: value for key, value in FEW.items() if key in parameters}
    flags = [key for key, p in parameters.items() if isinstance(p.default, bool)]
    for chosen in ({}, few, *({**few, flag: True} for flag in flags)):
        if chosen or not few:
            arguments = {**spec["init_args"], **chosen}
            yield pytest.param({**spec, "init_args": arguments}, id=f"{config.stem}-{chosen}")
    if few:
        yield pytest.param(spec, id=config.stem)


@pytest.fixture(params=[variant for config in CONFIGS for variant in variants(config)])
def policy(request) -> PairPolicy:
    return instantiate(request.param, PairPolicy)


def batch() -> Targets:
    """Five images with two captions and a hard negative, a text of two images, an empty image."""
    truth, same_group = torch.zeros(6, 16, dtype=torch.bool), torch.zeros(6, 16, dtype=torch.bool)
    for i in range(5):
        truth[i, 3 * i : 3 * i + 2] = True
        same_group[i, 3 * i : 3 * i + 3] = True
    truth[:2, 15] = True  # across groups
    mined = torch.zeros_like(truth)
    mined[:5, :13:3] = ~truth[:5, :13:3]
    return Targets(truth, same_group, same_group, mined)


def reference(seed: int = 7) -> torch.Tensor:
    return 3 * torch.randn(6, 16, generator=torch.Generator().manual_seed(seed))


def choose(policy, seed=0, targets=None, scores=None, device="cpu"):
    targets = (batch() if targets is None else targets).to(device)
    scores = (reference() if scores is None else scores).to(device)
    generator = torch.Generator().manual_seed(seed)
    return policy(targets, generator, scores if policy.needs_reference else None)


def test_every_image_with_a_true_text_gets_one_and_false_ones_stand_against_them(policy):
    """Wherever images and texts stand; which true text is random."""
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        rows, columns = (torch.randperm(size, generator=generator) for size in (6, 16))
        moved = batch().map(lambda mask, at=(rows, columns): mask[at[0]][:, at[1]])
        for targets in (batch(), moved):
            chosen = choose(policy, seed, targets)
            assert chosen.shape == targets.truth.shape
            assert chosen.dtype == torch.bool
            described = targets.truth.any(dim=1)
            assert (chosen & targets.truth).any(dim=1).equal(described)
            assert (chosen & ~targets.truth).any()


def test_a_known_true_text_never_takes_the_place_of_a_negative(policy):
    """Neither by the highest scores nor by marks of a cache that knows less."""
    for seed in range(5):
        targets = batch()
        tempting = reference() + 100.0 * targets.truth
        marked = replace(targets, mined_negatives=torch.ones_like(targets.truth))
        chosen = choose(policy, seed, marked, tempting)
        assert (chosen & targets.truth).any(dim=1)[:5].all()
        assert (chosen & ~targets.truth).sum() >= 4


def test_the_generator_is_the_only_source_of_chance(policy):
    first, state = choose(policy, 3), torch.get_rng_state()
    torch.manual_seed(11)
    assert choose(policy, 3).equal(first)
    assert torch.get_rng_state().equal(torch.manual_seed(11).get_state())
    torch.set_rng_state(state)
    if not first.all():
        assert any(not choose(policy, seed).equal(first) for seed in range(5))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_every_device_makes_the_same_choice(policy):
    for seed in range(5):
        chosen = choose(policy, seed, device="cuda")
        assert chosen.is_cuda
        assert chosen.cpu().equal(choose(policy, seed))


def test_targets_stay_as_they_are(policy):
    targets, scores = batch(), reference()
    choose(policy, 0, targets, scores)
    assert scores.equal(reference())
    for name in ("truth", "known", "same_group", "mined_negatives"):
        assert getattr(targets, name).equal(getattr(batch(), name))


def test_a_batch_of_one_kind(policy):
    for true in [True, False]:
        truth = torch.full((3, 4), true)
        chosen = choose(policy, 0, Targets(truth, truth, truth, ~truth), torch.zeros(3, 4))
        assert chosen.any(dim=1).all() or not true


def test_extreme_scores_are_no_trouble(policy):
    for value in (0.0, 1e4, -1e4):
        chosen = choose(policy, scores=torch.full((6, 16), value))
        assert (chosen & batch().truth).any(dim=1)[:5].all()
        assert (chosen & ~batch().truth).any()


def test_validation_batches_without_mined_negatives(policy):
    chosen = choose(policy, targets=replace(batch(), mined_negatives=None))
    assert (chosen & ~batch().truth).any()


def test_the_spec_makes_it_again(policy):
    again = instantiate(policy.spec(), PairPolicy)
    assert again.spec() == policy.spec()
    assert again.needs_reference == policy.needs_reference
    assert again.needs_mined_negatives == policy.needs_mined_negatives
    assert choose(again).equal(choose(policy))
