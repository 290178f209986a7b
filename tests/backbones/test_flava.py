import pytest
import torch
from transformers import FlavaForPreTraining

from tests.backbones.hf_models import write_flava
from vlmtune.backbones.flava import Flava
from vlmtune.types import Reads

TEXTS = ["a red cube left of the blue sphere", "dog", "a green metal cube"]


@pytest.fixture
def backbone(tmp_path):
    return Flava(str(write_flava(tmp_path / "flava")))


def pixels():
    torch.manual_seed(1)
    return torch.randn(3, 3, 32, 32)


def test_tokens_are_the_librarys_hidden_states(backbone):
    words = backbone.encode_text(TEXTS, Reads("words"))
    with torch.no_grad():
        output = backbone.model(
            input_ids=words.ids, attention_mask=words.mask.long(), pixel_values=pixels()
        )
    image, text = output.image_output, output.text_output
    assert len(image.hidden_states) == len(text.hidden_states) == 4
    for layer in (-2, -3):  # "second-last layer features" are hidden_states[-2]
        got = backbone.encode_image(pixels(), Reads("tokens", layer)).tokens
        torch.testing.assert_close(got, image.hidden_states[layer][:, 1:])
        got = backbone.encode_text(TEXTS, Reads("tokens", layer))
        torch.testing.assert_close(got.tokens[got.mask], text.hidden_states[layer][got.mask])
    got = backbone.encode_image(pixels(), Reads("tokens", -1)).tokens
    torch.testing.assert_close(got, image.last_hidden_state[:, 1:])
    got = backbone.encode_text(TEXTS, Reads("tokens", -1))
    torch.testing.assert_close(got.tokens[got.mask], text.last_hidden_state[got.mask])
    for layer in (-1, -4):  # without the final norm: what the multimodal encoder gets
        got = backbone.encode_image(pixels(), Reads("state", layer)).tokens
        torch.testing.assert_close(got, image.hidden_states[layer])


def test_scores_are_the_contrastive_logits_of_pretraining(tmp_path):
    path = write_flava(tmp_path / "whole", kind=FlavaForPreTraining, image_width=16)
    backbone = Flava(str(path))
    words = backbone.encode_text(TEXTS, Reads("words"))
    model = FlavaForPreTraining.from_pretrained(path).eval()
    with torch.no_grad():
        want = model(
            input_ids=words.ids,
            input_ids_masked=words.ids,
            attention_mask=words.mask.long(),
            pixel_values=pixels(),
            bool_masked_pos=torch.zeros(3, 4, 4),
            return_loss=False,
        ).contrastive_logits_per_image
    image = backbone.encode_image(pixels(), Reads("pooled")).pooled
    text = backbone.encode_text(TEXTS, Reads("pooled")).pooled
    normalize = torch.nn.functional.normalize
    got = backbone.logit_scale * normalize(image) @ normalize(text).T
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_no_codebook_and_no_second_softmax(backbone):
    assert not any("codebook" in name for name, _ in backbone.named_parameters())
    attention = backbone.model.text_model.encoder.layer[0].attention.attention
    states = torch.randn(1, 4, 16)
    _, weights = attention(states, output_attentions=True)
    query, key = (
        f(states).view(1, 4, 2, 8).transpose(1, 2) for f in (attention.query, attention.key)
    )
    torch.testing.assert_close(weights, (query @ key.mT / 8**0.5).softmax(dim=-1))
