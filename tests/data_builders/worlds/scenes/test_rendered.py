"""Scenes rendered while training: groups that are true, seen compositions only, and repeatable."""

from typing import Any, get_args

import numpy as np
import pytest
import torch

from data_builders.worlds.scenes.compositions import RECTANGLES
from data_builders.worlds.scenes.rendered import Kind, RenderedScenes
from tests.refusals import refused
from vlmtune.data.schema import check

KINDS = get_args(Kind)
UNSEEN = [f"{color} {shape}" for rows in RECTANGLES for color in rows[0] for shape in rows[1]]


def pixels(group):
    return [np.asarray(image) for image in group.images]


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_depends_on_its_number_alone(kind):
    data = RenderedScenes(8, kind, image_size=16, seed=2)
    batch = data.groups(1, 0, 6)
    [alone] = data.groups(1, 4, 1)
    for name in ("key", "image_ids", "text_ids", "texts", "true_ids"):
        assert getattr(alone, name) == getattr(batch[4], name)
    assert (alone.truth == batch[4].truth).all()
    assert all((a == b).all() for a, b in zip(pixels(alone), pixels(batch[4]), strict=True))
    keys = {group.key for epoch in (0, 1) for group in data.groups(epoch, 0, 6)}
    assert len(keys) == 12
    other = RenderedScenes(8, kind, image_size=16, seed=3).groups(1, 4, 1)[0]
    assert (pixels(other)[0] != pixels(alone)[0]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_groups_are_valid_and_show_seen_compositions(kind):
    for group in RenderedScenes(8, kind, image_size=16).groups(0, 0, 8):
        check(group)
        assert {image.size for image in group.images or ()} == {(16, 16)}
        assert not [words for words in UNSEEN if any(words in text for text in group.texts)]
        if kind == "captions":
            assert group.truth.shape == (1, 5)
            assert group.truth.all()
        elif kind.startswith("ar4t"):
            expected = torch.eye(2, dtype=torch.bool).repeat_interleave(2, dim=1)
            assert (group.truth == expected).all()
        else:
            assert (group.truth == torch.eye(2, dtype=torch.bool)).all()


def test_colours_without_a_swap_are_refused():
    # Of what is left only gray has two shapes.
    three: Any = {"colors": ["red", "blue", "gray"], "shapes": ["cube", "sphere", "cone"]}
    with refused("expected two colours and two shapes"):
        RenderedScenes(8, "cola", **three, unseen=[(["red", "blue"], ["cube", "sphere"])])
