"""The MM-Adapter against its formula: a pair at a time, without padding."""

import itertools

import pytest
import torch
from torch.nn.functional import normalize

from tests.adapters.families import TEXTS, attached, near
from tests.adapters.fused import (
    LENGTHS,
    features,
    moved,
    same_values_and_gradients,
)
from vlmtune.adapters import MMAdapter


def naive_pair(adapter, patches, words, length):
    """The score of one image and one caption of `length` tokens, start and end among them."""
    memory = torch.cat([patches @ adapter.project.weight.T + adapter.project.bias, words])
    # `forward` of the encoder and the decoder is torch's.
    out = adapter.decoder(adapter.query, adapter.encoder(memory[None]))[0, 0]
    total = 0.0
    for q in words[1 : length - 1]:
        product = out @ q
        total = total + (product / (out.norm() * q.norm()) if adapter.cosine else product)
    mean = total / (length - 2)
    return adapter.log_scale.exp() * mean + adapter.bias if adapter.cosine else mean


@pytest.mark.parametrize(
    ("cosine", "norm_first", "masked"), list(itertools.product([True, False], repeat=3))
)
def test_values_and_gradients_equal_the_double_loop(cosine, norm_first, masked):
    layers = {"encoder_layers": 2, "decoder_layers": 2, "norm_first": norm_first}
    made = MMAdapter(heads=2, hidden=2, cosine=cosine, masked=masked, **layers)
    adapter = moved(made).eval()
    image, text = features(padding=0)
    image.values.requires_grad_()
    got = adapter(image, text).values
    want = torch.stack(
        [
            # Unmasked, padding up to the longest caption is attended.
            naive_pair(adapter, patches, words[: length if masked else None], length)
            for patches in image.values
            for words, length in zip(text.values, LENGTHS, strict=True)
        ]
    ).view(4, 3)
    same_values_and_gradients(got, want, [*adapter.parameters(), image.values])
    with torch.no_grad():  # torch has another code path for this
        torch.testing.assert_close(adapter(image, text).values, want.detach())


@pytest.mark.parametrize("family", ["open_clip", "siglip"])
@torch.no_grad()
def test_it_can_read_the_embeddings_of_words(family):
    adapter, model = attached(MMAdapter(text_layer="words"), family)
    tower, (lead, trail) = model.text_tower, model.text_special
    prepared = adapter.prepare_text(model.encode_text(TEXTS, adapter.text_input))
    for i, text in enumerate(TEXTS):
        # Whether or not the tower reads padding, that is no word.
        words = tower.words([text])
        states = tower.start(words).values[0, : words.token_count]
        want = normalize(states[lead : len(states) - trail], dim=1).mean(dim=0)
        near(prepared.pooled[i], want)
        near(prepared.tokens[i : i + 1].trimmed().values, adapter.encoder.pack(states[None]))
