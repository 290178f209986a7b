import pytest
import torch
from transformers import (
    BridgeTowerForContrastiveLearning,
    BridgeTowerForImageAndTextRetrieval,
    BridgeTowerModel,
)

from tests.backbones import libraries
from tests.backbones.hf_models import TEXTS, pixels, write_bridgetower
from tests.contracts.test_backbones import matches
from tests.refusals import refused
from vlmtune.adapters.last_blocks import LastBlocks
from vlmtune.backbones.hf.bridgetower import BridgeTower
from vlmtune.types import FeatureSpec


@pytest.mark.parametrize(
    "options",
    [
        {"num_hidden_layers": 1},
        pytest.param({"num_hidden_layers": 3}, marks=pytest.mark.slow),
        pytest.param({"link_tower_type": "scaled_add"}, marks=pytest.mark.slow),
        pytest.param({"link_tower_type": "interpolate"}, marks=pytest.mark.slow),
        {"share_cross_modal_transformer_layers": False},
        {"width": 16},  # towers of two widths
    ],
)
def test_all_forms_match_as_the_library_does(tmp_path, options):
    kind = BridgeTowerForImageAndTextRetrieval
    options = {"num_hidden_layers": 2, **options}
    path = write_bridgetower(tmp_path / "bridgetower", kind=kind, **options)
    backbone = BridgeTower(str(path))
    want = libraries.bridgetower_matches(path, pixels(), TEXTS)
    torch.testing.assert_close(matches(backbone, pixels()), want, rtol=1e-4, atol=1e-5)
    assert len(backbone.fusion.blocks) == options["num_hidden_layers"]
    assert backbone.fusion.image_input == FeatureSpec("state", -options["num_hidden_layers"])


def test_without_contrastive_heads_it_has_no_embeddings_and_without_another_no_fusion(tmp_path):
    kind = BridgeTowerForImageAndTextRetrieval
    path = write_bridgetower(tmp_path / "itm", kind=kind, contrastive_hidden_size=None)
    backbone = BridgeTower(str(path))
    assert backbone.fusion is not None
    for modality in ("image", "text"):
        assert "no contrastive heads" in (backbone.fits(FeatureSpec("pooled"), modality) or "")
        assert backbone.fits(FeatureSpec("tokens"), modality) is None
    with refused("no contrastive heads"):
        backbone.encode_text(TEXTS, FeatureSpec("pooled"))
    assert (backbone.embed_dim, backbone.logit_scale) == (64, 1.0)
    assert backbone.image_tower is backbone.text_tower is None
    with refused(r"BridgeTower \(its checkpoint has no contrastive heads"):
        LastBlocks().attach(backbone)
    named = write_bridgetower(tmp_path / "named", kind=kind)
    assert BridgeTower(str(named)).no_pooled == backbone.no_pooled
    path = write_bridgetower(tmp_path / "itc", kind=BridgeTowerForContrastiveLearning)
    backbone = BridgeTower(str(path))
    assert backbone.fusion is None
    assert "no matching head" in backbone.no_fusion
    assert backbone.fits(FeatureSpec("pooled"), "text") is None
    bare = BridgeTower(str(write_bridgetower(tmp_path / "bare", kind=BridgeTowerModel)))
    assert bare.fusion is None
    assert bare.fits(FeatureSpec("pooled"), "text")
    assert not any("itm" in name or "itc" in name for name, _ in bare.named_parameters())
