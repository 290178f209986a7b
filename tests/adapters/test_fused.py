"""MM-Adapter and MM-Pred in place of FLAVA's last multimodal layers (Cola, section 6.1)."""

import pytest
import torch

from scripts.bench.joint_scoring import naive_fusion, naive_score_head
from tests.adapters.fused import STYLES
from tests.backbones import hf_models
from tests.refusals import refused
from vlmtune.adapters import MMAdapter, MMPred
from vlmtune.backbones.hf.flava import Flava
from vlmtune.backbones.open_clip.open_clip import OpenClip

TEXTS = ["a red cube left of the blue sphere", "dog", "a green metal cube"]
BLOCKS, REPLACED = 3, 2


@pytest.fixture(scope="module")
def flava(tmp_path_factory):
    return Flava(str(hf_models.write_flava(tmp_path_factory.mktemp("flava"), blocks=BLOCKS)))


def made(flava, cls=MMAdapter, style=STYLES[0], **options):
    torch.manual_seed(0)
    adapter = cls(replaces=REPLACED, fusion=style(), heads=2, hidden=2, dropout=0.0, **options)
    adapter.attach(flava)
    return adapter


def features(flava, adapter):
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    image = flava.encode_image(pixels, adapter.image_input)
    return image, flava.encode_text(TEXTS, adapter.text_input)


def joined(flava, image, text):
    """All tokens of a pair before the replaced layers, as the library's own encoder has them."""
    network = flava.model.flava
    parts = network.image_to_mm_projection(image), network.text_to_mm_projection(text)
    output = network.multimodal_model(torch.cat(parts, dim=1), output_hidden_states=True)
    return output.hidden_states[BLOCKS - REPLACED]


@pytest.mark.parametrize("cls", [MMAdapter, MMPred])
@pytest.mark.parametrize("style", STYLES)
def test_new_layers_read_what_flavas_layers_have_joined(flava, cls, style):
    adapter = made(flava, cls, style).eval()
    image, text = features(flava, adapter)
    with torch.no_grad():
        got = adapter(image, text).values
        for i, states in enumerate(image.values):
            for j in range(len(TEXTS)):
                words = text[torch.tensor([j])].trimmed()
                tokens = adapter.project(joined(flava, states[None], words.values))
                last = tokens.shape[1] - words.token_count
                # [CLS] of the multimodal encoder and that of the image are not patches.
                fused = naive_fusion(adapter, tokens[:, 2:last], tokens[:, last:], words.mask)
                want = naive_score_head(adapter, fused, words.values, words.mask)
                torch.testing.assert_close(got[i, j], want[0], rtol=1e-4, atol=1e-5)
    assert got.std() > 1e-4


def test_what_cannot_be_replaced_is_said_in_one_line(flava, model_folder):
    with refused("patches and words in one sequence, got OpenClip .*: choose Flava"):
        made(OpenClip(str(model_folder)))
    with refused("expected at most 3 blocks for `replaces`, which is all, got 4"):
        MMAdapter(replaces=4).attach(flava)
