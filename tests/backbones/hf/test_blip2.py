"""BLIP-2 with both of its scores, and BLIP."""

import pytest
import torch

from tests.backbones.hf_models import TEXTS, write_blip2
from tests.backbones.kinds import tiny
from tests.backbones.libraries import blip2_scores
from tests.contracts.test_backbones import matches, pixels_for
from tests.refusals import refused
from vlmtune.adapters.matching import Matching
from vlmtune.backbones import Blip2


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_blip2(tmp_path_factory.mktemp("models") / "blip2")


@pytest.fixture(scope="module")
def backbone(path):
    return Blip2(str(path))


@pytest.fixture(scope="module")
def itc(path):
    return Blip2(str(path), score="itc")


def test_contrastive_scores_are_the_librarys(path, itc):
    shown = pixels_for(itc)
    with torch.no_grad():
        want = blip2_scores(path, shown, TEXTS)
    torch.testing.assert_close(matches(itc, shown), want, rtol=1e-5, atol=1e-5)
    assert min(want.std(dim=0).min(), want.std(dim=1).min()) > 1e-3  # images and captions count


def test_contrastive_scores_depend_on_their_pair_alone_and_are_close_in_bfloat16(path, itc):
    shown = pixels_for(itc)
    whole = matches(itc, shown)
    for i in range(3):
        for j, text in enumerate(TEXTS):
            alone = matches(itc, shown[i : i + 1], [text])
            torch.testing.assert_close(alone[0, 0], whole[i, j], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(matches(itc, shown, extra=2), whole, rtol=1e-5, atol=1e-5)
    fusion = itc.fusion
    image = fusion.prepare_image(itc.encode_image(shown[:1], fusion.image_input))
    text = fusion.prepare_text(itc.encode_text(TEXTS, fusion.text_input))
    torch.testing.assert_close(fusion.match(image, text), whole[0])
    low = matches(Blip2(str(path), precision="bf16", score="itc"), shown)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, whole, rtol=0.2, atol=0.2)


def test_the_two_scores_read_the_same_features_and_only_one_trains(path, backbone, itc):
    assert backbone.fingerprint == itc.fingerprint  # one store serves both
    assert backbone.fusion.image_input == itc.fusion.image_input
    assert backbone.spec() != itc.spec()
    Matching(0).attach(itc)
    with refused("at most 0 blocks for `blocks`, which is all, got 1"):
        Matching(1).attach(itc)


def test_every_block_but_the_last_reads_words(backbone):
    names = {id(p): name for name, p in backbone.model.named_parameters()}
    trained = {names[id(p)] for block in backbone.fusion.blocks for p in block.parameters()}
    layers = {name for name in names.values() if name.startswith("qformer.encoder.layer.")}
    unread = {name for name in layers - trained if ".layer.2." in name}
    assert layers - trained == unread
    assert {name.split(".")[4] for name in unread} == {"intermediate", "output"}


def test_words_alone_have_no_use_for_cross_attention():
    backbone = tiny("blip")
    tower, fusion = backbone.text_tower, backbone.fusion
    of_tower = {id(p) for block in tower.blocks for p in block.parameters()}
    of_fusion = {id(p) for block in fusion.blocks for p in block.parameters()}
    names = dict(backbone.model.named_parameters())
    crossing = {id(p) for name, p in names.items() if "crossattention" in name}
    assert crossing
    assert of_tower | crossing == of_fusion
    assert not of_tower & crossing
