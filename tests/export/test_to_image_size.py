"""Exports that read images at another size."""

import pytest
import torch
from PIL import Image

import vlmtune
from tests.backbones.hf_models import write_clip
from tests.tiny import write_model
from vlmtune.adapters.late_interaction import LateInteraction
from vlmtune.backbones import HFCLIP, OpenClip
from vlmtune.export import save_export
from vlmtune.export.to_image_size import to_image_size
from vlmtune.model.model import Model


@pytest.mark.parametrize(("kind", "write"), [(OpenClip, write_model), (HFCLIP, write_clip)])
def test_an_export_reads_images_at_another_size(kind, write, tmp_path):
    base = str(write(tmp_path / "model"))
    torch.manual_seed(0)
    backbone, adapter = kind(base), LateInteraction()
    adapter.attach(backbone)
    size = 2 * backbone.preprocess(Image.new("RGB", (9, 9))).shape[-1]
    larger = to_image_size(Model(backbone, adapter), size)
    save_export(tmp_path / "larger", larger.backbone, larger.adapter, provenance={})
    # The same as a model that was built at that size and got the trained weights.
    want, other = kind(base, image_size=size), LateInteraction()
    other.attach(want)
    other.load_state_dict(adapter.state_dict())
    picture = Image.effect_noise((3 * size, 2 * size), 90).convert("RGB")
    texts = ["a red cube", "a blue sphere"]
    got = vlmtune.load(tmp_path / "larger", device="cpu")
    assert got.backbone.image_tokens == 4 * backbone.image_tokens
    torch.testing.assert_close(got.score(picture, texts), Model(want, other).score(picture, texts))
