"""Which numbers `--layer` takes from an image tower."""

import pytest
import torch

from vlmtune.export import load
from vlmtune.probing.embeddings import Embedder
from vlmtune.types import FeatureSpec, Tokens


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", ["patches", "class"])
def test_a_layer_is_its_mean_patch_or_its_class_token(kind, depth, model_folder):
    model = load(str(model_folder), device="cpu")
    backbone = model.backbone
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    embedded = Embedder(model, f"{kind}-{depth}").embed(pixels)
    spec = FeatureSpec("tokens" if kind == "patches" else "state", -depth)
    with torch.no_grad():
        tokens = backbone.encode_image(pixels, spec)
    assert isinstance(tokens, Tokens)
    expected = tokens.values.mean(dim=1) if kind == "patches" else tokens.values[:, 0]
    torch.testing.assert_close(embedded, expected)
    assert embedded.shape[0] == 3
    assert not torch.allclose(embedded, Embedder(model, f"{kind}-{3 - depth}").embed(pixels))
