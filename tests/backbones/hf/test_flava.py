import torch
from safetensors.torch import load_file, save_file
from transformers import FlavaModel

from tests.backbones.hf_models import TEXTS, pixels, write_flava
from tests.backbones.kinds import tiny
from tests.backbones.libraries import flava_matches
from tests.contracts.test_backbones import matches
from tests.refusals import refused
from vlmtune.backbones.hf.flava import Flava


def test_no_codebook_and_no_second_softmax():
    backbone = tiny("flava")
    assert not any("codebook" in name for name, _ in backbone.named_parameters())
    attention = backbone.model.flava.text_model.encoder.layer[0].attention.attention
    states = torch.randn(1, 4, 16)
    _, weights = attention(states, output_attentions=True)
    both = (attention.query, attention.key)
    query, key = (f(states).view(1, 4, 2, 8).transpose(1, 2) for f in both)
    torch.testing.assert_close(weights, (query @ key.mT / 8**0.5).softmax(dim=-1))


def test_without_its_head_it_is_a_dual_encoder_and_half_a_head_is_refused(tmp_path):
    plain = Flava(str(write_flava(tmp_path / "plain", kind=FlavaModel)))
    assert plain.fusion is None
    assert "itm_head" in plain.no_fusion
    assert plain.model.itm_head is None
    whole = Flava(str(write_flava(tmp_path / "whole")))
    assert whole.fusion is not None
    for name, value in plain.model.state_dict().items():
        assert value.shape == whole.model.state_dict()[name].shape
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
    torch.testing.assert_close(matches(backbone, pixels()), want, rtol=1e-4, atol=1e-5)
