"""Tokens of each layer are the hidden states of the library's own towers."""

import pytest
import torch
from torch.nn.functional import pad

from tests.backbones.hf_models import TEXTS, pixels
from tests.backbones.kinds import tiny
from vlmtune.types import FeatureSpec


def library_states(stem, backbone, words):
    """What the image and the text tower of the library give, with all hidden states."""
    model = getattr(backbone.model, "flava", backbone.model)
    vision = model.image_model if stem == "flava" else model.vision_model
    image = vision(pixels(), output_hidden_states=True)
    given = {"attention_mask": words.mask.long(), "output_hidden_states": True}
    if stem == "blip2":
        embedded = model.embeddings(input_ids=words.ids)
        return image, model.qformer(query_embeds=embedded, query_length=0, **given)
    if stem == "siglip":  # reads the padding
        ids = pad(words.ids, (0, 12 - words.ids.shape[1]), value=1)
        return image, model.text_model(ids, output_hidden_states=True)
    text = model.text_encoder if stem == "blip" else model.text_model
    return image, text(words.ids, **given)


@pytest.mark.parametrize("stem", ["hf_clip", "metaclip2", "siglip", "flava", "blip", "blip2"])
def test_tokens_are_the_librarys_states(stem):
    backbone = tiny(stem)
    words = backbone.encode_text(TEXTS, FeatureSpec("words"))
    with torch.no_grad():
        image, text = library_states(stem, backbone, words)
        last = image.last_hidden_state
        if stem in ("hf_clip", "metaclip2"):  # their last states lack the final norm
            last = backbone.model.vision_model.post_layernorm(last)
    special = 0 if stem == "siglip" else 1
    for layer in (-1, -2, -3):
        want = last if layer == -1 else image.hidden_states[layer]
        got = backbone.encode_image(pixels(), FeatureSpec("tokens", layer)).values
        torch.testing.assert_close(got, want[:, special:])
        want = text.last_hidden_state if layer == -1 else text.hidden_states[layer]
        got = backbone.encode_text(TEXTS, FeatureSpec("tokens", layer))
        length = got.mask.shape[1]
        torch.testing.assert_close(got.values[got.mask], want[:, :length][got.mask])
