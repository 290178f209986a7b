import pytest
import torch
from torch import nn

from tests.toy import Together, Toy, Tune, batch, groups
from vlmtune.objectives import InfoNCE, PairBCE
from vlmtune.training import AdaptationModule, recompute
from vlmtune.training.recompute import in_chunks

BATCH = batch([group for part in groups((3, 3)) for group in part])
OBJECTIVES = [InfoNCE(), PairBCE(balanced=True)]


def step(chunk, adapter=None, dropout=0.0):
    torch.manual_seed(1)
    backbone = Toy(dropout)
    made = AdaptationModule(backbone, adapter or Tune(dropout=dropout), OBJECTIVES, chunk=chunk)
    made.log = lambda *_, **__: None
    torch.manual_seed(2)
    loss = made.training_step(BATCH, 0)
    calls = len(backbone.images), len(backbone.texts)
    loss.backward()
    gradients = {n: p.grad for n, p in made.named_parameters() if p.requires_grad}
    return loss.item(), gradients, calls, (len(backbone.images), len(backbone.texts))


def assert_same(one, other):
    assert one[0] == pytest.approx(other[0], rel=1e-12)
    for name, gradient in other[1].items():
        torch.testing.assert_close(one[1][name], gradient)


@pytest.mark.parametrize("adapter", [Tune, lambda: Tune(True, "tokens"), Together])
@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_chunks_change_neither_loss_nor_gradient(adapter, chunk):
    whole, chunked = step(None, adapter()), step(chunk, adapter())
    assert_same(chunked, whole)


def test_with_dropout_the_second_computation_draws_as_the_first(monkeypatch):
    recomputed = step(2, dropout=0.3)
    assert recomputed[0] != step(2)[0]
    monkeypatch.setattr(
        recompute, "checkpoint", lambda run, *arguments, use_reentrant: run(*arguments)
    )
    assert_same(recomputed, step(2, dropout=0.3))


def test_live_sides_are_computed_twice_and_frozen_ones_once():
    n, m = len(BATCH.image_ids), len(BATCH.texts)
    chunks = -(-n // 2), -(-m // 2)
    *_, before, after = step(2)
    assert before == chunks
    assert after == (2 * chunks[0], 2 * chunks[1])
    *_, before, after = step(2, Tune(frozen=True))
    assert before == after == chunks


def test_activations_are_not_kept():
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 8)) for _ in range(4)))
    x = torch.randn(64, 8)

    def kept(chunk):
        sizes = []
        owned = {p.data_ptr() for p in layers.parameters()} | {x.data_ptr()}

        def pack(tensor):
            sizes.append(0 if tensor.data_ptr() in owned else tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            in_chunks(lambda part: layers(x[part]), 64, chunk, x.device)
        return sum(sizes)

    assert kept(None) > 64 * 64 * 4
    assert kept(8) < 64 * 8


def test_without_gradients_nothing_is_prepared_for_the_way_back(monkeypatch):
    monkeypatch.setattr(recompute, "checkpoint", lambda *_, **__: pytest.fail("kept"))
    with torch.no_grad():
        out = in_chunks(lambda part: torch.arange(5.0)[part], 5, 2, torch.device("cpu"))
    assert out.tolist() == [0, 1, 2, 3, 4]
