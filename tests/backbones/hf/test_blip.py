import pytest

from tests.backbones.hf_models import write_blip
from vlmtune.backbones.hf.blip import Blip


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_blip(tmp_path_factory.mktemp("models") / "blip")


@pytest.fixture(scope="module")
def backbone(path):
    return Blip(str(path))


def test_words_alone_have_no_use_for_cross_attention(backbone):
    tower, fusion = backbone.text_tower, backbone.fusion
    of_tower = {id(p) for block in tower.blocks for p in block.parameters()}
    of_fusion = {id(p) for block in fusion.blocks for p in block.parameters()}
    names = dict(backbone.model.named_parameters())
    crossing = {id(p) for name, p in names.items() if "crossattention" in name}
    assert crossing
    assert of_tower | crossing == of_fusion
    assert not of_tower & crossing
