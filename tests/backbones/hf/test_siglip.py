import pytest
import torch

from tests.backbones.hf_models import edit, write_siglip
from tests.refusals import refused
from vlmtune.backbones.hf.siglip import SigLIP
from vlmtune.types import FeatureSpec

TEXTS = ["a red cube left of the blue sphere", "dog"]


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    return SigLIP(str(write_siglip(tmp_path_factory.mktemp("models") / "siglip")))


def full_ids(backbone):
    ids = backbone.encode_text(TEXTS, FeatureSpec("words")).ids
    return torch.nn.functional.pad(ids, (0, 12 - ids.shape[1]), value=1)


def test_states_are_the_librarys_hidden_states_over_all_positions(backbone):
    want = backbone.model.text_model(full_ids(backbone), output_hidden_states=True)
    for layer in (-4, -3, -2, -1):
        got = backbone.encode_text(TEXTS, FeatureSpec("state", layer))
        assert got.mask.all()
        torch.testing.assert_close(got.values, want.hidden_states[layer])
    got = backbone.encode_text(TEXTS, FeatureSpec("tokens"))
    assert got.mask.sum(dim=1).tolist() == [9, 2]
    torch.testing.assert_close(got.values[got.mask], want.last_hidden_state[:, :9][got.mask])


def test_image_tokens_are_the_librarys(backbone):
    torch.manual_seed(1)
    pixels = torch.randn(2, 3, 32, 32)
    want = backbone.model.vision_model(pixels, output_hidden_states=True)
    assert backbone.image_tower.special == 0
    got = backbone.encode_image(pixels, FeatureSpec("tokens", -1)).values
    torch.testing.assert_close(got, want.last_hidden_state)
    got = backbone.encode_image(pixels, FeatureSpec("tokens", -2)).values
    torch.testing.assert_close(got, want.hidden_states[-2])


def test_captions_are_read_in_lower_case(backbone):
    # The tiny tokenizer lowers too: what the library's tokenizer gets must be lower case already.
    asked = []
    tokenizer = backbone.text_tower.tokenizer
    inner = tokenizer._tokenizer
    tokenizer._tokenizer = lambda texts, **options: asked.append(texts) or inner(texts, **options)
    backbone.encode_text(["A Red Cube"], FeatureSpec("words"))
    assert asked == [["a red cube"]]


def test_scale_and_bias_are_the_models(backbone):
    assert backbone.logit_bias == backbone.model.logit_bias.item() != 0
    assert backbone.logit_scale == pytest.approx(backbone.model.logit_scale.exp().item())


def test_towers_without_a_pooling_head_are_refused(tmp_path):
    with refused("weights, tokenizer and image processor of one SigLIP"):
        SigLIP(str(write_siglip(tmp_path / "headless", vision_use_head=False)))


def test_a_tokenizer_without_its_end_token_is_refused(tmp_path):
    path = edit(write_siglip(tmp_path / "endless"), "tokenizer.json", post_processor=None)
    with refused(r"words and one end token \(id 1\), got \[2\] for 'a'"):
        SigLIP(str(path))
