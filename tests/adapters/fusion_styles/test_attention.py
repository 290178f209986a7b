"""Attention of a folded query against torch's, against its formula under dropout, and its cost."""

import math

import pytest
import torch
from torch import nn

from scripts.bench.joint_scoring import Job, Scorer
from vlmtune.adapters.fusion_styles.attention import attend, attend_folded, fold, project


@pytest.fixture
def attention():
    torch.manual_seed(0)
    made = nn.MultiheadAttention(8, 2, dropout=0.4, batch_first=True).double()
    nn.init.normal_(made.in_proj_bias)
    nn.init.normal_(made.out_proj.bias)
    return made


@pytest.fixture
def memory():
    return torch.randn(3, 5, 8, dtype=torch.float64)


@pytest.fixture
def mask():
    return torch.arange(5) < torch.tensor([5, 3, 1])[:, None]


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
def test_it_is_torchs_attention(attention, memory, mask, rows, masked):
    attention.eval()
    query = torch.randn(rows, 1, 8, dtype=torch.float64)
    every = query.expand(3, -1, -1)
    hidden = ~mask if masked else None
    want = attention(every, memory, memory, key_padding_mask=hidden, need_weights=False)[0]
    seen = mask if masked else None
    folded = attend_folded(attention, fold(attention, query), memory, seen)
    torch.testing.assert_close(folded, want)
    keys, values = project(attention, memory, 1, 3).chunk(2, dim=2)
    whole = attend(attention, project(attention, every, 0, 1), keys, values, seen)
    torch.testing.assert_close(whole, want)


def test_dropout_hides_weights_and_scales_up_the_others(attention, memory, mask, monkeypatch):
    # The bias of the values then counts as often as weights are left.
    kept = torch.rand(3, 5, 2, dtype=torch.float64).lt(0.6) / 0.6
    given = []

    def dropped(weights, p):
        given.append(p)
        return weights * kept

    monkeypatch.setattr(nn.functional, "dropout", dropped)
    query = torch.randn(3, 1, 8, dtype=torch.float64)
    got = attend_folded(attention.train(), fold(attention, query), memory, mask)
    assert given == [0.4]
    for row in range(3):
        weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
        q = query[row, 0] @ weights[0].T + biases[0]
        k, v = (memory[row] @ w.T + b for w, b in zip(weights[1:], biases[1:], strict=True))
        heads = []
        for h, part in enumerate((slice(0, 4), slice(4, 8))):
            logits = (k[:, part] @ q[part] / math.sqrt(4)).masked_fill(~mask[row], -torch.inf)
            heads.append((torch.softmax(logits, dim=0) * kept[row, :, h]) @ v[:, part])
        want = attention.out_proj(torch.cat(heads))
        torch.testing.assert_close(got[row, 0], want)


def both(images: int, texts: int) -> list[Scorer]:
    return [Scorer(Job(naive, "Mdetr", images, texts, pairs=8)) for naive in (True, False)]


def test_both_forms_agree_on_the_benchmarks_inputs():
    naive, ours = (scorer.scores() for scorer in both(3, 2))
    assert ours.std() > 0
    torch.testing.assert_close(ours, naive, rtol=1e-4, atol=1e-4)


def test_the_required_speed_is_within_reach():
    naive, ours = (scorer.operations() for scorer in both(8, 8))
    assert 2.9 < naive / ours < 3.15
