import dataclasses

import pytest
import torch

from vlmtune.types import Batch, Features, Scores, Targets


def tokens(*lengths, width=4):
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Features(tokens=torch.randn(*mask.shape, width) * mask[:, :, None], mask=mask)


def test_the_length_of_features():
    assert len(Features(pooled=torch.zeros(3, 2))) == 3
    assert len(tokens(2, 5)) == 2
    assert len(Features()) == 0


@pytest.mark.parametrize("rows", [slice(1, 3), torch.tensor([2, 0]), [1], slice(0, 0)])
def test_rows_of_features(rows):
    whole = Features(torch.randn(3, 2), *tokens(1, 4, 2)._parts()[1:])
    part = whole[rows]
    assert part.pooled.equal(whole.pooled[rows])
    assert part.tokens.equal(whole.tokens[rows])
    assert part.mask.equal(whole.mask[rows])
    assert Features(pooled=whole.pooled)[rows].tokens is None


def test_concatenation_pads_with_nothing():
    one, other = tokens(2, 3), tokens(5)
    both = Features.concatenate([one, other])
    assert both.tokens.shape == (3, 5, 4)
    assert both.mask.sum(dim=1).tolist() == [2, 3, 5]
    assert both.tokens[:2, :3].equal(one.tokens)
    assert both.tokens[2:].equal(other.tokens)
    assert not both.tokens[~both.mask].any()
    pooled = Features.concatenate([Features(pooled=torch.ones(1, 2)), Features(torch.zeros(2, 2))])
    assert pooled.pooled.sum(dim=1).tolist() == [2, 0, 0]
    assert pooled.tokens is None
    assert len(Features.concatenate([])) == 0


def test_only_real_numbers_change_their_type():
    moved = Features(torch.ones(3, 2), *tokens(1, 4, 2)._parts()[1:]).to("cpu", torch.bfloat16)
    assert moved.pooled.dtype == moved.tokens.dtype == torch.bfloat16
    assert moved.mask.dtype == torch.bool
    assert tokens(1).to("cpu").tokens.dtype == torch.float32


def test_full_scores():
    scores = Scores.full(torch.randn(2, 3))
    assert scores.computed.dtype == torch.bool
    assert scores.computed.all()


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
    moved = batch.to("meta", non_blocking=True)
    assert moved.targets.truth.is_meta
    assert moved.targets.known.is_meta
    assert moved.targets.same_group.is_meta
    assert moved.targets.mined_negatives.is_meta
    assert Targets(flags, flags, flags).to("meta").mined_negatives is None
    assert moved.image_group.is_meta
    assert moved.pixels is None if pixels is None else moved.pixels.is_meta
    assert (moved.keys, moved.texts, moved.damaged) == (batch.keys, batch.texts, batch.damaged)
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.keys = ()
