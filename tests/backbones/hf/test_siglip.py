import pytest

from tests.backbones.hf_models import edit, write_siglip
from tests.refusals import refused
from vlmtune.backbones.hf.siglip import SigLIP
from vlmtune.types import FeatureSpec


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    return SigLIP(str(write_siglip(tmp_path_factory.mktemp("models") / "siglip")))


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
