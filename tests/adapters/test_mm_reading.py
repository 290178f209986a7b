"""What words read in MM-Adapter and MM-Pred: the attention that torch's own module reports."""

import pytest
import torch

from vlmtune.adapters import MMAdapter, MMPred
from vlmtune.adapters.fusion_styles.albef import Albef
from vlmtune.adapters.fusion_styles.fiber_mm import FiberMM
from vlmtune.adapters.fusion_styles.mdetr import Mdetr
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.evaluation.reading import read_words

CAPTIONS = ["a red cube", "the dog"]


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("kind", [MMAdapter, MMPred])
@pytest.mark.parametrize("style", [Mdetr, FiberMM])
def test_reading_is_the_attention_of_the_first_joint_layer(
    style, kind, norm_first, model_folder, pictures
):
    backbone = OpenClip(str(model_folder))
    torch.manual_seed(0)
    adapter = kind(heads=2, hidden=1, fusion=style(), norm_first=norm_first)
    adapter.attach(backbone)
    adapter.eval()
    assert adapter.gives_reading
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    image = backbone.encode_image(pixels, adapter.image_input)
    text = backbone.encode_text(CAPTIONS, adapter.text_input)
    got = adapter.reading(adapter.prepare_image(image), adapter.prepare_text(text))
    patches = image.token_count
    assert got.shape == (2, text.token_count, patches)

    layer = adapter.encoder.layers[0]
    tokens = torch.cat([adapter.project(image.values), text.values], dim=1)
    tokens = layer.norm1(tokens) if norm_first else tokens
    hidden = ~torch.cat([image.mask, text.mask], dim=1)
    weights = layer.self_attn(tokens, tokens, tokens, key_padding_mask=hidden)[1]
    want = weights[:, patches:, :patches]
    want = want / want.sum(dim=2, keepdim=True)
    for row, length in enumerate(text.lengths.tolist()):  # padding reads nothing that counts
        torch.testing.assert_close(got[row, :length], want[row, :length])
    assert not torch.allclose(got[0, 1], got[0, 2], atol=1e-4)
    words = read_words(backbone, adapter, pictures[0], "a red cube")
    assert words.words == ("a", "red", "cube")
    torch.testing.assert_close(words.maps.sum(dim=(1, 2)), torch.ones(3))


def test_a_style_without_a_joint_encoder_has_no_reading():
    assert not MMAdapter(fusion=Albef()).gives_reading
