"""Captions beyond the context of pre-training."""

import pytest
import torch

from tests.refusals import refused
from vlmtune.backbones.open_clip.context import stretched
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.types import FeatureSpec

POOLED = FeatureSpec("pooled")


def caption(words):
    return " ".join(["red", "cube"] * (words // 2) + ["a"] * (words % 2))


def values(backbone, texts):
    return backbone.encode_text(texts, POOLED).values


def test_positions_are_those_of_long_clip():
    """Four rows for each old one, written out; three of them lie beyond the last."""
    old = torch.randn(77, 5, dtype=torch.float64)
    want = [old[i] for i in range(20)]
    for i in range(20, 76):
        want += [old[i] + part / 4 * (old[i + 1] - old[i]) for part in range(4)]
    want += [old[76] + part / 4 * (old[76] - old[75]) for part in range(4)]
    torch.testing.assert_close(stretched(old, 248), torch.stack(want))


@pytest.mark.parametrize("name", ["model_folder", "clip_folder"])
def test_short_captions_keep_their_embeddings(name, request):
    folder = str(request.getfixturevalue(name))
    plain, long = OpenClip(folder), OpenClip(folder, context_length=248)
    short = [caption(n) for n in (1, 7, 18)]  # 18 words, a start and an end are 20 tokens
    assert values(long, short).equal(values(plain, short))
    # Row 20 is the same too, row 21 is not: that of the end token after 20 words.
    assert values(long, [caption(19)]).equal(values(plain, [caption(19)]))
    assert not values(long, [caption(20)]).equal(values(plain, [caption(20)]))
    assert not values(long, [caption(90)]).allclose(values(long, [caption(80)]))


def test_only_positions_change_and_what_was_saved_loads_with_its_context(model_folder, tmp_path):
    plain = OpenClip(str(model_folder)).model.state_dict()
    long = OpenClip(str(model_folder), context_length=100)
    state = long.model.state_dict()
    assert plain.keys() == state.keys()
    changed = {name for name in plain if not plain[name].equal(state[name])}
    assert changed == {"positional_embedding"}
    same = OpenClip(str(model_folder), context_length=77)
    assert same.fingerprint == OpenClip(str(model_folder)).fingerprint
    long.save(tmp_path / "long")
    again = OpenClip(str(tmp_path / "long"))
    texts = [caption(95), caption(3)]
    assert values(again, texts).equal(values(long, texts))
    assert long.text_tower.positions == 100


def test_what_cannot_be_stretched(model_folder, folder):
    with refused("from 22 to 64 positions, got that of"):
        OpenClip(str(model_folder), context_length=64)
    last = folder("last", text={"pool_type": "last", "no_causal_mask": True}, custom_text=True)
    with refused("attends to the left, pools the end token .* leave context_length out"):
        OpenClip(str(last), context_length=100)
