import pytest
import torch

from vlmtune.adapters import JointAdapter, LinearProbe
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec, Pooled, Tokens


class Lengths(JointAdapter):
    """Scores a pair by its image's number and its caption's length; notes what it is given."""

    def __init__(self):
        super().__init__()
        self.image_input = self.text_input = FeatureSpec("tokens", -2)
        self.prepared, self.calls = [], []

    def prepare_image(self, image):
        self.prepared.append(len(image))
        return image

    def prepare_text(self, text):
        self.prepared.append(len(text))
        return text

    def score_pairs(self, image, text):
        self.calls.append(tuple(text.values.shape[:2]))
        return image.values[:, 0, 0] * 10 + text.mask.sum(dim=1)


def tokens(lengths, width=3):
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Tokens(torch.ones(*mask.shape, width) * mask[:, :, None], mask=mask)


def numbered(count):
    values = torch.arange(1.0, count + 1)[:, None, None].expand(count, 2, 3)
    return Tokens(values, mask=torch.ones(count, 2, dtype=torch.bool))


def test_modalities_are_prepared_once_and_pairs_go_by_length_in_chunks():
    adapter = Lengths()
    adapter.chunk_size = lambda *given, **options: 4
    scores = adapter(numbered(3), tokens([5, 2, 3, 2]))
    assert adapter.prepared == [3, 4]
    assert adapter.calls == [(4, 2), (4, 3), (4, 5)]
    want = [[10 * i + length for length in (5, 2, 3, 2)] for i in (1, 2, 3)]
    assert scores.values.tolist() == want


def test_what_is_no_features_is_said_in_one_line(backbone):
    adapter = LinearProbe()
    adapter.attach(backbone)
    pooled = Pooled(torch.ones(2, 3))
    for given in ((["a.png"], pooled), (Tokens.full(torch.ones(2, 4, 3)), pooled)):
        with pytest.raises(TypeError, match=r"expected Pooled, got \w+: use backbone.encode_image"):
            adapter(*given)
    with pytest.raises(TypeError, match=r"expected Pooled, got list: use backbone.encode_text"):
        adapter(pooled, ["a dog"])
    with pytest.raises(TypeError, match=r"expected Tokens, got Pooled: use backbone.encode_image"):
        Lengths()(pooled, pooled)


def test_a_backbone_without_the_layer_is_refused(backbone):
    adapter = LinearProbe()
    adapter.image_input = FeatureSpec("tokens", -9)
    said = "layer -9 for images, got OpenClip .*choose one of .*: choose .*HFCLIP.* or OpenClip"
    with pytest.raises(UserError, match=said):
        adapter.attach(backbone)
