"""The MM-Adapter against one written from its formula: a pair at a time, without padding."""

import itertools

import pytest
import torch

from tests.tiny import Widths
from vlmtune.adapters.mm_adapter import MMAdapter
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.types import Tokens

LENGTHS = (4, 7, 3)


def naive_pair(adapter, patches, words, length):
    """The score of one image and one caption of `length` tokens, start and end among them."""
    memory = torch.cat([patches @ adapter.project.weight.T + adapter.project.bias, words])
    # `forward` of the encoder and the decoder is torch's.
    out = adapter.decoder(adapter.query, adapter.encoder(memory[None]))[0, 0]
    total = 0.0
    for q in words[1 : length - 1]:
        product = out @ q
        total = total + (product / (out.norm() * q.norm()) if adapter.cosine else product)
    mean = total / (length - 2)
    return adapter.log_scale.exp() * mean + adapter.bias if adapter.cosine else mean


def made(**options):
    torch.manual_seed(0)
    adapter = MMAdapter(heads=2, encoder_layers=2, decoder_layers=2, hidden=2, **options)
    adapter.attach(Widths(image_width=6, text_width=8, image_tokens=5))
    with torch.no_grad():
        for parameter in adapter.parameters():  # also the norms, the biases, scale and offset
            parameter.add_(0.2 * torch.randn_like(parameter))
    return adapter.double()


def features():
    torch.manual_seed(1)
    image = torch.randn(4, 5, 6, dtype=torch.float64)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    text = torch.randn(*mask.shape, 8, dtype=torch.float64) * mask[:, :, None]
    return image, text, mask


def score(adapter, image, text, mask):
    real = torch.ones(image.shape[:2], dtype=torch.bool)
    return adapter(Tokens(image, mask=real), Tokens(text, mask=mask)).values


@pytest.mark.parametrize(
    ("cosine", "norm_first", "masked"), list(itertools.product([True, False], repeat=3))
)
def test_values_and_gradients_equal_the_double_loop(cosine, norm_first, masked):
    adapter = made(cosine=cosine, norm_first=norm_first, masked=masked).eval()
    image, text, mask = features()
    image.requires_grad_()
    parameters = [*adapter.parameters(), image]
    got = score(adapter, image, text, mask)
    want = torch.stack(
        [
            # Unmasked, padding up to the longest caption is attended.
            naive_pair(adapter, image[i], text[j, : length if masked else None], length)
            for i in range(4)
            for j, length in enumerate(LENGTHS)
        ]
    ).view(4, 3)
    torch.testing.assert_close(got, want)
    weights = torch.randn(4, 3, dtype=torch.float64)
    ours = torch.autograd.grad((got * weights).sum(), parameters)
    theirs = torch.autograd.grad((want * weights).sum(), parameters)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)
    with torch.no_grad():  # torch has another code path for this
        torch.testing.assert_close(score(adapter, image, text, mask), want.detach())


@torch.no_grad()
def test_it_can_read_the_embeddings_of_words(model_folder):
    backbone = OpenClip(str(model_folder))
    adapter = MMAdapter(text_layer="words")
    adapter.attach(backbone)
    tower, captions = backbone.text_tower, ["red cube", "cube red"]
    assert tower is not None
    texts = backbone.encode_text(captions, adapter.text_input)
    assert isinstance(texts, Tokens)
    words = tower.start(tower.words(captions))
    assert texts.trimmed().values.equal(words.trimmed().values)
