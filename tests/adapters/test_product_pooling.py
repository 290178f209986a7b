"""Product pooling against its formula: image by image, text by text, token by token."""

import math

import pytest
import torch
from torch.nn.functional import conv2d, cosine_similarity, gelu, layer_norm

from tests.adapters.families import TEXTS, attached, pixels, plain
from vlmtune.adapters.product_pooling import ProductPooling
from vlmtune.types import Tokens


def summed(tokens, layer, width, products):
    """The sum over tokens of a gate times the product of two readings, or times the first."""
    total = torch.zeros(width)
    for token in tokens:
        numbers = layer.weight @ layer_norm(token, token.shape) + layer.bias
        first, second, gate = numbers[:width], numbers[width:-1], numbers[-1]
        reading = first * second if products else first
        total += reading / (1 + (-gate).exp())
    return total


def image_product(adapter, state, special):
    """f of one image, from its state with special tokens first."""
    side = math.isqrt(len(state) - special)
    patches = []
    for number, token in enumerate(state[special:]):
        projected = adapter.project(token)
        x, y = (2 * place / (side - 1) - 1 for place in (number % side, number // side))
        place = adapter.position(torch.tensor([x, y, x * x, y * y]))
        patches.append(layer_norm(projected, projected.shape) + place)
    patches = torch.stack(patches)
    square = patches.T.reshape(1, -1, side, side)
    neighbours = gelu(conv2d(square, adapter.local.weight, adapter.local.bias, padding=1))
    patches = patches + neighbours.flatten(2)[0].T
    mask = torch.ones(1, len(patches), dtype=torch.bool)
    patches = adapter.image.all(patches[None], mask)[0]
    return summed(patches, adapter.of_patch, adapter.width, adapter.products)


@torch.no_grad()
@pytest.mark.parametrize(("weight", "products"), [(0.0, True), (0.5, True), (0.5, False)])
def test_scores_are_those_of_the_formula(weight, products):
    made = ProductPooling(width=6, products=products, frozen_weight=weight)
    adapter, model = attached(made, "open_clip")
    for parameter in adapter.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    image = model.encode_image(pixels(), adapter.image_input)
    text = model.encode_text(TEXTS, adapter.text_input)
    got = adapter(image, text).values
    in_training = adapter.train()(image, text).values
    images, texts = plain(model)
    assert isinstance(text, Tokens)
    assert model.image_tower is not None
    for j, words in enumerate(text.lengths.tolist()):
        spoken = text.values[j, :words]
        spoken = adapter.text.all(
            layer_norm(spoken, spoken.shape[1:])[None], text.mask[j : j + 1, :words]
        )
        of_text = summed(spoken[0], adapter.of_word, 6, products)
        for i in range(len(image)):
            of_image = image_product(adapter, image.values[i], model.image_tower.special)
            learned = float(adapter.log_scale.exp() * cosine_similarity(of_image, of_text, dim=0))
            expected = learned + float(adapter.bias)
            assert in_training[i, j].item() == pytest.approx(expected, abs=1e-4)
            # The frozen score counts in evaluation only.
            frozen = float(cosine_similarity(images[i], texts[j], dim=0))
            expected += weight * model.logit_scale * frozen
            assert got[i, j].item() == pytest.approx(expected, abs=1e-4)
