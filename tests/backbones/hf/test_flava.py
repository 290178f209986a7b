import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import FlavaForPreTraining, FlavaModel

from tests.backbones.hf_models import pixels, write_flava
from tests.backbones.libraries import flava_matches
from tests.refusals import refused
from vlmtune.backbones.hf.flava import Flava
from vlmtune.types import FeatureSpec

TEXTS = ["a red cube left of the blue sphere", "dog", "a green metal cube"]


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    return Flava(str(write_flava(tmp_path_factory.mktemp("models") / "flava")))


def test_tokens_are_the_librarys_hidden_states(backbone):
    words = backbone.encode_text(TEXTS, FeatureSpec("words"))
    with torch.no_grad():
        given = {"input_ids": words.ids, "attention_mask": words.mask.long()}
        output = backbone.model.flava(**given, pixel_values=pixels())
    image, text = output.image_output, output.text_output
    assert len(image.hidden_states) == len(text.hidden_states) == 4
    for layer in (-2, -3):  # "second-last layer features" are hidden_states[-2]
        got = backbone.encode_image(pixels(), FeatureSpec("tokens", layer)).values
        torch.testing.assert_close(got, image.hidden_states[layer][:, 1:])
        got = backbone.encode_text(TEXTS, FeatureSpec("tokens", layer))
        torch.testing.assert_close(got.values[got.mask], text.hidden_states[layer][got.mask])
    got = backbone.encode_image(pixels(), FeatureSpec("tokens", -1)).values
    torch.testing.assert_close(got, image.last_hidden_state[:, 1:])
    got = backbone.encode_text(TEXTS, FeatureSpec("tokens", -1))
    torch.testing.assert_close(got.values[got.mask], text.last_hidden_state[got.mask])
    for layer in (-1, -4):  # without the final norm: what the multimodal encoder gets
        got = backbone.encode_image(pixels(), FeatureSpec("state", layer)).values
        torch.testing.assert_close(got, image.hidden_states[layer])


def test_scores_are_the_contrastive_logits_of_pretraining(tmp_path):
    path = write_flava(tmp_path / "whole", kind=FlavaForPreTraining, image_width=16)
    backbone = Flava(str(path))
    words = backbone.encode_text(TEXTS, FeatureSpec("words"))
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
    image = backbone.encode_image(pixels(), FeatureSpec("pooled")).values
    text = backbone.encode_text(TEXTS, FeatureSpec("pooled")).values
    normalize = torch.nn.functional.normalize
    got = backbone.logit_scale * normalize(image) @ normalize(text).T
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_no_codebook_and_no_second_softmax(backbone):
    assert not any("codebook" in name for name, _ in backbone.named_parameters())
    attention = backbone.model.flava.text_model.encoder.layer[0].attention.attention
    states = torch.randn(1, 4, 16)
    _, weights = attention(states, output_attentions=True)
    both = (attention.query, attention.key)
    query, key = (f(states).view(1, 4, 2, 8).transpose(1, 2) for f in both)
    torch.testing.assert_close(weights, (query @ key.mT / 8**0.5).softmax(dim=-1))


def test_without_its_head_it_is_a_dual_encoder(tmp_path):
    plain = Flava(str(write_flava(tmp_path / "plain", kind=FlavaModel)))
    assert plain.fusion is None
    assert "itm_head" in plain.no_fusion
    assert plain.model.itm_head is None
    whole = Flava(str(write_flava(tmp_path / "whole")))
    assert whole.fusion is not None
    for name, value in plain.model.state_dict().items():
        assert value.shape == whole.model.state_dict()[name].shape


def test_half_a_head_is_refused(tmp_path):
    path = write_flava(tmp_path / "flava") / "model.safetensors"
    lost = "itm_head.pooler.dense.weight"
    state = {name: value for name, value in load_file(path).items() if name != lost}
    save_file(state, path, metadata={"format": "pt"})
    with refused(f"got 1 missing keys, first {lost}"):
        Flava(str(path.parent))


def test_no_class_token_of_its_own(tmp_path):
    """The multimodal encoder may do without; the head then reads the image's class token."""
    path = write_flava(tmp_path / "flava")
    text = (path / "config.json").read_text()
    assert '"use_cls_token": true' in text
    text = text.replace('"use_cls_token": true', '"use_cls_token": false')
    (path / "config.json").write_text(text)
    backbone = Flava(str(path))
    want = flava_matches(path, pixels(), TEXTS)
    fusion = backbone.fusion
    image = fusion.prepare_image(backbone.encode_image(pixels(), fusion.image_input))
    text = fusion.prepare_text(backbone.encode_text(TEXTS, fusion.text_input))
    got = torch.stack([fusion.match(image[i : i + 1], text) for i in range(3)])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
