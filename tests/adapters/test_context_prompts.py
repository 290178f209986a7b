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
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec


@pytest.mark.parametrize("family", FAMILIES)
def test_it_starts_as_the_words_it_is_given(family):
    adapter, model = attached(ContextPrompts(init="a red"), family)
    assert adapter.context.shape == (1, 2, 16)
    image, text = embedded(adapter, model)
    assert image.equal(plain(model)[0])
    near(text, plain(model, [f"a red {caption}" for caption in TEXTS])[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_context_moves(family):
    adapter, model = attached(ContextPrompts(length=3), family)
    assert trained(model) == set()
    assert {n for n, p in adapter.named_parameters() if p.requires_grad} == {"context"}
    before = embedded(adapter, model)[1]
    fit(adapter, model)
    assert not torch.allclose(embedded(adapter, model)[1], before, atol=1e-4)
    for got, want in zip(plain(model), plain(backbone(family)), strict=True):
        assert got.equal(want)


def test_random_contexts_are_drawn_small():
    adapter, _ = attached(ContextPrompts(length=8))
    assert adapter.context.std().item() == pytest.approx(0.02, rel=0.3)
    assert adapter.context.mean().abs().item() < 0.01


@pytest.mark.parametrize("family", FAMILIES)
def test_classes_have_contexts_of_their_own(family):
    classes = ["red cube", "dog"]
    adapter, model = attached(ContextPrompts(init="a", classes=classes), family)
    texts = ["red cube", "dog", "blue dog", "sphere"]
    words = model.encode_text(texts, adapter.text_input)
    assert adapter.contexts(words).tolist() == [1, 2, 0, 0]
    near(embedded(adapter, model, texts)[1], plain(model, [f"a {text}" for text in texts])[1])
    with torch.no_grad():
        before = embedded(adapter, model, texts)[1]
        adapter.context[2] += torch.randn(1, 16)
        changed = (embedded(adapter, model, texts)[1] - before).abs()
    assert (changed.amax(dim=1) > 1e-3).tolist() == [False, True, False, False]


def test_the_context_of_a_class_moves_with_its_texts():
    adapter, model = attached(ContextPrompts(length=2, classes=["red cube", "dog", "sphere"]))
    before = adapter.context.detach().clone()
    fit(adapter, model, texts=["red cube", "dog"])
    moved = (adapter.context != before).flatten(1).any(dim=1)
    assert moved.tolist() == [False, True, True, False]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"length": 0}, "at least 1 context vector, got 0"),
        ({"length": 10}, "at most 9 prompt tokens"),
        ({"init": "a photo"}, "'photo'"),
        ({"classes": ["dog", "dog"]}, "distinct classes"),
        ({"classes": ["dog", "Dog"]}, "got 1 distinct ones of 2"),
    ],
)
def test_what_is_refused(options, said):
    with pytest.raises(UserError) as error:
        attached(ContextPrompts(**options))
    assert said in str(error.value)


def test_images_are_read_frozen():
    assert ContextPrompts().image_input == FeatureSpec("pooled")
