from dataclasses import replace

import pytest
import torch

from tests.toy import Toy, batch, groups
from vlmtune.inputs import Inputs, frozen
from vlmtune.types import Reads

BATCH = batch(groups((3,))[0])


class Data:
    """What a datamodule says of the images and texts of `BATCH`."""

    def __init__(self, texts=BATCH.texts):
        self.texts = sorted(texts)

    def digest(self, split):
        return f"{split} {len(self.texts)}"

    def distinct_counts(self):
        return len(BATCH.image_ids), len(self.texts)

    def distinct_images(self, preprocess):
        yield BATCH.image_ids, BATCH.pixels

    def distinct_texts(self):
        return self.texts


def inputs(kind="pooled", frozen=True, dropout=0.0):
    return Inputs(Toy(dropout), Reads(kind, -1, frozen), Reads(kind, -1, frozen))


def assert_equal(one, other, **tolerance):
    for name in ("pooled", "tokens", "mask"):
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a.double(), b.double(), **tolerance)


@pytest.mark.parametrize("kind", ["pooled", "tokens"])
@pytest.mark.parametrize("known", [0, 2, None])
@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-6), ("float16", 2e-3)])
def test_captions_that_are_not_stored_are_encoded(tmp_path, kind, known, dtype, error):
    stored, fresh = inputs(kind), inputs(kind)
    texts = BATCH.texts[1::2] if known is None else BATCH.texts[:known]
    if texts:
        stored.open(tmp_path, Data(texts), "toy", dtype)
    else:
        stored.open(tmp_path, Data(["another"]), "toy", dtype)
    stored.backbone.texts.clear()
    got = stored.all("text", BATCH)
    assert_equal(got, fresh.all("text", BATCH), rtol=error, atol=error)
    assert stored.backbone.texts == [[text for text in BATCH.texts if text not in texts]]
    assert_equal(stored.all("text", BATCH), got, rtol=0, atol=0)
    assert_equal(stored.some("text", BATCH, slice(1, 3)), got[1:3], rtol=0, atol=1e-7)
    values = got.pooled if kind == "pooled" else got.tokens
    assert values.equal(values.to(getattr(torch, dtype)).float())


def test_a_store_is_read_and_nothing_encoded(tmp_path):
    stored = inputs()
    stored.open(tmp_path, Data(), "toy", "float32")
    stored.backbone.images.clear()
    stored.backbone.texts.clear()
    without = replace(BATCH, pixels=None)
    for side in ("image", "text"):
        assert_equal(stored.all(side, without, 2), inputs().all(side, BATCH), rtol=1e-5, atol=1e-6)
    assert stored.backbone.images == stored.backbone.texts == []


def test_live_representations_are_not_stored(tmp_path):
    live = inputs(frozen=False)
    live.open(tmp_path, Data(), "toy", "float32")
    assert live.stored == {}
    live.backbone.requires_grad_()
    assert live.all("image", BATCH).pooled.requires_grad
    assert not inputs().all("image", BATCH).pooled.requires_grad


def test_frozen_representations_have_no_dropout_in_training():
    plain, dropping = inputs(), inputs(dropout=0.5)
    dropping.backbone.train()
    for side in ("image", "text"):
        assert_equal(dropping.all(side, BATCH), plain.all(side, BATCH))
    assert dropping.backbone.training
    assert dropping.backbone.drop.training


def test_modes_are_set_back_after_an_error():
    backbone = Toy()
    backbone.text.eval()

    def fail():
        with frozen(backbone):
            raise ValueError(backbone.drop.training)

    with pytest.raises(ValueError, match="False"):
        fail()
    assert backbone.drop.training
    assert not backbone.text.training
