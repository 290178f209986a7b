import pytest

from tests.backbones.hf_models import write_siglip
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


def test_towers_without_a_pooling_head_are_refused(tmp_path):
    with refused("weights, tokenizer and image processor of one SigLIP"):
        SigLIP(str(write_siglip(tmp_path / "headless", vision_use_head=False)))
