import pytest

from tests.backbones.hf_models import edit, write_blip
from tests.refusals import refused
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


def test_images_of_another_size_are_refused_not_cut(tmp_path):
    size = {"height": 24, "width": 24}
    path = edit(write_blip(tmp_path / "blip"), "preprocessor_config.json", size=size)
    with refused("the model takes 32 x 32"):
        Blip(str(path))
