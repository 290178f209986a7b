"""Compressed against one written from its formula: an image, a query and a head at a time."""

import math

import pytest
import torch

from tests.adapters.families import attached
from tests.adapters.fused import features, moved, same_values_and_gradients
from tests.refusals import refused
from tests.tiny import Widths
from vlmtune.adapters import Adapter, Compressed, GroundedWords, MMAdapter, MMPred
from vlmtune.adapters.fusion_styles.fiber import Fiber
from vlmtune.config import instantiate
from vlmtune.objectives import TextRecovery
from vlmtune.search.parts import Encoded, write_part
from vlmtune.types import Targets, Tokens

LENGTHS = (5, 2, 4, 1)  # patches of four images


def made(cls=MMAdapter, tokens=3, **options):
    inner = cls(heads=2, hidden=2, dropout=0.0, **options)
    return moved(Compressed(inner, tokens, heads=2, hidden=2))


def padded():
    """Images that differ in their number of patches, with other numbers behind them, and texts."""
    image, text = features()
    mask = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
    return Tokens(image.values.masked_fill(~mask[:, :, None], 1e3), mask), text


def naive_token(adapter, patches, number):
    """Token `number` of one image, from its real patches."""
    keys, values = adapter.keys_values.weight.chunk(2)
    query, half = adapter.queries[number], 3  # two heads of half the width
    parts = []
    for start in (0, half):
        rows = slice(start, start + half)
        weights = [math.e ** (query[rows] @ keys[rows] @ x / math.sqrt(half)) for x in patches]
        pairs = zip(weights, patches, strict=True)
        parts.append(sum(a / sum(weights) * (values[rows] @ x) for a, x in pairs))
    h = torch.cat(parts)
    spread = ((h - h.mean()) ** 2).mean()
    normed = (h - h.mean()) / torch.sqrt(spread + 1e-5) * adapter.norm.weight + adapter.norm.bias
    first, _, last = adapter.mlp
    hidden = first.weight @ normed + first.bias
    active = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
    return adapter.project.weight @ (h + last.weight @ active + last.bias)


@pytest.mark.parametrize("cls", [MMAdapter, MMPred])
def test_values_and_gradients_equal_the_loops(cls):
    adapter = made(cls).eval()
    image, text = padded()
    rows = []
    for patches, length in zip(image.values, LENGTHS, strict=True):
        rows.append(torch.stack([naive_token(adapter, patches[:length], i) for i in range(3)]))
    tokens = torch.stack(rows)
    torch.testing.assert_close(adapter.compress(image).values, tokens)
    got = adapter(image, text).values
    want = adapter.adapter(Tokens.full(tokens), text).values
    same_values_and_gradients(got, want, list(adapter.parameters()))


def test_the_mean_of_its_tokens_is_trained_to_recover_the_frozen_words():
    adapter = moved(Compressed(MMAdapter(heads=2, hidden=2), 3, heads=2, hidden=2, contrast=True))
    image, text = features()
    contrast = adapter.contrast
    cosines = []
    for i in range(len(image)):
        mean = adapter.compress(image[[i]]).values[0].mean(dim=0)
        recovered = contrast.recover.weight @ mean
        for tokens, mask in zip(text.values, text.mask, strict=True):
            # The first and the last real token are no words.
            words = tokens[mask][1:-1]
            view = torch.stack([word / word.norm() for word in words]).mean(dim=0)
            cosines.append(recovered @ view / recovered.norm() / view.norm())
    want = torch.stack(cosines).view(len(image), len(text))
    scores = contrast.scores(contrast.embed_image(image), contrast.embed_text(text))
    torch.testing.assert_close(scores.values, contrast.scale * want + contrast.bias)
    truth = torch.zeros_like(want, dtype=torch.bool)
    truth[0, 1] = truth[2, 0] = True
    loss = TextRecovery()(scores, Targets(truth, truth, truth))
    torch.testing.assert_close(loss, 1 - (want[0, 1] + want[2, 0]) / 2)
    loss.backward()
    assert adapter.queries.grad.abs().sum() > 0
    assert adapter.adapter.query.grad is None


@torch.no_grad()
def test_the_bytes_of_an_image_fall_with_the_tokens(tmp_path):
    image, _ = features()
    adapters = {k: made(tokens=k) for k in (1, 2, 4)}
    sizes = {}
    for k, adapter in {**adapters, 5: adapters[1].adapter}.items():
        prepared = adapter.prepare_image(image).to("cpu", torch.float32)
        assert prepared.token_count == k  # of 5 patches without compression
        part = tmp_path / str(k)
        write_part(part, {}, [Encoded("abcd", torch.ones(4, 2), prepared)])
        sizes[k] = sum((part / name).stat().st_size for name in ("tokens.bin", "scales.bin")) / 4
    # Query, key, value and token of 8 numbers in a byte each, and a scale.
    assert sizes == {k: k * (4 * 8 + 4) for k in (1, 2, 4, 5)}


def test_its_size_is_the_stated_one_and_it_scores_in_the_memory_of_the_adapter_inside():
    inner, adapter = MMAdapter(), Compressed(MMAdapter())
    for each in (inner, adapter):
        each.attach(Widths())
    counts = [sum(p.numel() for p in each.parameters()) for each in (inner, adapter)]
    assert counts[1] - counts[0] == 6_505_728
    adapter = made(memory=2**20, training_memory=0, fusion=Fiber())
    assert (adapter.memory, adapter.training_memory) == (2**20, 0)
    image, text = features()
    images, texts = adapter.prepare_image(image), adapter.prepare_text(text)
    for training in (True, False):
        size = adapter.pair_bytes(images, texts, training)
        assert size == adapter.adapter.pair_bytes(images, texts, training) > 0


def test_what_it_cannot_hold_is_an_error_in_one_line():
    with refused("new layers read patch tokens, got GroundedWords"):
        attached(Compressed(GroundedWords()))
    with refused("divide the token width 768, got 5"):
        Compressed(MMAdapter(), heads=5).attach(Widths())
    dual = {"class_path": "vlmtune.adapters.ft_late.FTLate", "init_args": {}}
    spec = {"class_path": "vlmtune.adapters.Compressed", "init_args": {"adapter": dual}}
    with refused("JointAdapter as adapter of"):
        instantiate(spec, Adapter)
