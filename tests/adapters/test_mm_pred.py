"""The prediction head on the fusion that test_fusion_styles.py compares with torch's layers."""

import pytest
import torch

from tests.adapters.fused import STYLES, features, made
from vlmtune.adapters.mm_pred import MMPred


@pytest.mark.parametrize("style", STYLES)
def test_it_is_linear_in_the_outputs_the_adapter_compares(style):
    head, adapter = made(style, MMPred).eval(), made(style).eval()
    shared = {n: p for n, p in head.state_dict().items() if not n.startswith("predict")}
    adapter.load_state_dict(shared, strict=False)
    outputs = []
    adapter.score_head = lambda fused, target: outputs.append(fused) or fused[:, 0, 0]
    image, text = features()
    adapter(image, text)
    fused = outputs[0].flatten(1)
    assert fused.shape == (12, 8 * style.queries)
    want = fused @ head.predict.weight[0] + head.predict.bias
    # Chunks go by caption length: captions 2, 0, 1, each with all four images.
    got = head(image, text).values[:, [2, 0, 1]].T.flatten()
    torch.testing.assert_close(got, want)
