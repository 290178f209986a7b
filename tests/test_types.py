import dataclasses

import pytest
import torch

from vlmtune.types import Batch, Pooled, PooledTokens, Targets, Tokens, concatenate


def tokens(*lengths, width=4):
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Tokens(torch.randn(*mask.shape, width) * mask[:, :, None], mask=mask)


@pytest.mark.parametrize("rows", [slice(1, 3), torch.tensor([2, 0]), [1], slice(0, 0)])
def test_rows_of_features(rows):
    both = PooledTokens(torch.randn(3, 2), tokens(1, 4, 2))
    part = both[rows]
    assert len(part) == len(torch.arange(3)[rows])
    assert part.pooled.equal(both.pooled[rows])
    assert part.tokens.values.equal(both.tokens.values[rows])
    assert part.tokens.mask.equal(both.tokens.mask[rows])
    assert Pooled(both.pooled)[rows].values.equal(part.pooled)


def test_concatenation_pads_with_nothing():
    one, other = tokens(2, 3), tokens(5)
    both = concatenate([one, other])
    assert both.values.shape == (3, 5, 4)
    assert both.lengths.tolist() == [2, 3, 5]
    assert both.values[:2, :3].equal(one.values)
    assert both.values[2:].equal(other.values)
    assert not both.values[~both.mask].any()
    vectors = [Pooled(torch.ones(1, 2)), Pooled(torch.zeros(2, 2))]
    pooled = concatenate(vectors)
    assert pooled.values.sum(dim=1).tolist() == [2, 0, 0]
    pairs = ((vectors[1].values, one), (torch.ones(1, 2), other))
    mixed = concatenate([PooledTokens(*pair) for pair in pairs])
    assert mixed.tokens.values.equal(both.values)
    assert mixed.pooled.sum(dim=1).tolist() == [0, 0, 2]


def test_only_real_numbers_change_their_type():
    moved = PooledTokens(torch.ones(3, 2), tokens(1, 4, 2)).to("cpu", torch.bfloat16)
    assert moved.pooled.dtype == moved.tokens.values.dtype == torch.bfloat16
    assert moved.tokens.mask.dtype == torch.bool
    assert tokens(1).to("cpu").values.dtype == torch.float32


@pytest.mark.parametrize("pixels", [torch.zeros(2, 3, 4, 4), None])
def test_a_batch_moves_as_a_whole(pixels):
    flags = torch.ones(2, 3, dtype=torch.bool)
    batch = Batch(
        keys=("a",),
        image_ids=("i", "j"),
        texts=("x", "y", "z"),
        targets=Targets(flags, flags, flags, flags),
        image_group=torch.zeros(2, dtype=torch.long),
        pixels=pixels,
        damaged=("r1: no image",),
    )
    moved = batch.to("meta")
    assert moved.targets.source is batch.targets
    for field in dataclasses.fields(Targets):
        if field.name != "source":
            assert getattr(moved.targets, field.name).is_meta
    assert Targets(flags, flags, flags).to("meta").mined_negatives is None
    assert moved.image_group.is_meta
    assert moved.pixels is None if pixels is None else moved.pixels.is_meta
    assert (moved.keys, moved.texts, moved.damaged) == (batch.keys, batch.texts, batch.damaged)
