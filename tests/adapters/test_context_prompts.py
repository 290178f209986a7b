import pytest
import torch

from tests.adapters.families import (
    FAMILIES,
    TEXTS,
    attached,
    backbone,
    embedded,
    fit,
    near,
    plain,
    trained,
)
from vlmtune.adapters.context_prompts import ContextPrompts


@pytest.mark.parametrize("family", FAMILIES)
def test_it_starts_as_the_words_it_is_given(family):
    adapter, model = attached(ContextPrompts(init="a red"), family)
    assert adapter.context.shape == (2, 16)
    image, text = embedded(adapter, model)
    assert image.equal(plain(model)[0])
    near(text, plain(model, [f"a red {caption}" for caption in TEXTS])[1])


def test_only_the_context_moves():
    adapter, model = attached(ContextPrompts(length=3))
    assert trained(model) == set()
    assert {n for n, p in adapter.named_parameters() if p.requires_grad} == {"context"}
    before = embedded(adapter, model)[1]
    fit(adapter, model)
    assert not torch.allclose(embedded(adapter, model)[1], before, atol=1e-4)
    for got, want in zip(plain(model), plain(backbone()), strict=True):
        assert got.equal(want)


def test_random_contexts_are_drawn_small():
    adapter, _ = attached(ContextPrompts(length=8))
    assert adapter.context.std().item() == pytest.approx(0.02, rel=0.3)
    assert adapter.context.mean().abs().item() < 0.01
