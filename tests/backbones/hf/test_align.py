import pytest
import torch
import transformers

from tests.backbones.hf_models import pixels, write_align
from tests.refusals import refused
from vlmtune.adapters import LinearProbe, LoRA
from vlmtune.backbones.hf.align import Align
from vlmtune.types import FeatureSpec


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_align(tmp_path_factory.mktemp("align") / "model")


@pytest.fixture(scope="module")
def backbone(folder):
    return Align(str(folder))


@pytest.fixture(scope="module")
def library(folder):
    return transformers.AlignModel.from_pretrained(folder).eval()


def test_image_tokens_are_the_places_of_the_librarys_maps(backbone, library):
    with torch.no_grad():
        want = library.vision_model(pixels(), output_hidden_states=True)
    for layer in (-1, -2, -3):
        got = backbone.encode_image(pixels(), FeatureSpec("tokens", layer)).values
        block = want.hidden_states[layer]
        assert block.shape == (3, 16, 4, 4) if layer == -1 else block.shape[1] == 16
        torch.testing.assert_close(got, block.flatten(2).mT, rtol=1e-5, atol=1e-5)
    assert backbone.image_tokens == 16
    assert len(backbone.model.vision_model.encoder.blocks) == 4
    with refused("3 layers"):
        backbone.encode_image(pixels(), FeatureSpec("tokens", -4))
    LinearProbe().attach(backbone)
    with refused("convolutional"):
        LoRA().attach(backbone)
