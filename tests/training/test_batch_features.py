import re
from dataclasses import replace

import pytest
import torch

from tests.refusals import refused
from tests.toy import Toy, batch, groups
from vlmtune.training.batch_features import BatchFeatures
from vlmtune.types import FeatureSpec, Tokens

BATCH = batch(groups((3,))[0])


class Data:
    """What a datamodule says of the images and texts of `BATCH`."""

    def __init__(self, texts=BATCH.texts, names=None, images=None):
        self.texts = sorted(texts)
        names = BATCH.image_ids if names is None else names
        chosen = range(len(BATCH.image_ids)) if images is None else images
        self.rows = dict(zip(names, chosen, strict=True))  # image id -> row of BATCH.pixels
        self.read, self.decoded = 0, []

    def digest(self, split):
        return f"{split} {self.rows} {len(self.texts)}"

    def image_ids(self):
        return self.rows.keys()

    def image_digests(self):
        self.read += 1
        return {name: f"picture {row}" for name, row in self.rows.items()}

    def distinct_images(self, preprocess, ids):
        self.decoded += ids
        if ids:
            yield tuple(ids), BATCH.pixels[[self.rows[name] for name in ids]]

    def distinct_texts(self):
        return self.texts

    def use_stored_images(self, stored):
        raise AssertionError("the module calls it")


def inputs(kind="pooled", frozen=True, dropout=0.0):
    return BatchFeatures(Toy(dropout), FeatureSpec(kind, -1, frozen), FeatureSpec(kind, -1, frozen))


def assert_equal(one, other, **tolerance):
    assert type(one) is type(other)
    torch.testing.assert_close(one.values.double(), other.values.double(), **tolerance)
    if isinstance(one, Tokens):
        assert one.mask.equal(other.mask)


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
    got = stored.encode_batch("text", BATCH)
    assert_equal(got, fresh.encode_batch("text", BATCH), rtol=error, atol=error)
    assert stored.backbone.texts == [[text for text in BATCH.texts if text not in texts]]
    assert_equal(stored.encode_batch("text", BATCH), got, rtol=0, atol=0)
    assert_equal(stored.encode_rows("text", BATCH, slice(1, 3)), got[1:3], rtol=0, atol=1e-7)
    values = got.values
    assert values.equal(values.to(getattr(torch, dtype)).float())


def pixels_of(folder):
    return replace(BATCH, pixels=None, image_ids=tuple(folder))


def test_images_of_other_shards_are_copied_by_their_content(tmp_path):
    first = inputs()
    first.open(tmp_path, Data(), "toy", "float32")
    # The same names for other pictures, the same pictures under other names, and new ones.
    names = ("c", *BATCH.image_ids[:1], "a", "twin")
    data = Data(names=names, images=[2, 1, 0, 0])
    second = inputs()
    second.open(tmp_path, data, "toy", "float32")
    assert data.decoded == []
    assert second.backbone.images == []
    want = inputs().encode_batch("image", BATCH).values
    got = second.encode_batch("image", pixels_of(names)).values
    torch.testing.assert_close(got.double(), want[[2, 1, 0, 0]], rtol=1e-5, atol=1e-6)
    assert "a" in second.images
    assert BATCH.image_ids[2] not in second.images
    with refused("1 of 1 are not among them"):
        second.encode_batch("image", pixels_of(["picture 0 of nobody"]))


def test_only_what_no_store_has_is_encoded(tmp_path):
    first = inputs()
    first.open(tmp_path, Data(BATCH.texts[:2], ("a",), [1]), "toy", "float32")
    data, second = Data(), inputs()
    second.open(tmp_path, data, "toy", "float32")
    assert data.decoded == [name for name, row in data.rows.items() if row != 1]
    encoded = [text for block in second.backbone.texts for text in block]
    assert sorted(encoded) == sorted(BATCH.texts[2:])
    without = replace(BATCH, pixels=None)
    for side in ("image", "text"):
        got, want = second.encode_batch(side, without), inputs().encode_batch(side, BATCH)
        assert_equal(got, want, rtol=1e-5, atol=1e-6)


def test_the_content_of_images_is_read_once(tmp_path):
    for number in range(2):
        data = Data()
        inputs().open(tmp_path, data, "toy", "float32")
        assert data.read == (number == 0)
        assert bool(data.decoded) == (number == 0)
    (kept,) = tmp_path.glob("images-*.json")
    whole = kept.read_text()
    swapped = re.sub("picture [01]", lambda x: f"picture {1 - int(x[0][-1])}", whole)
    assert swapped != whole
    for damage in ("", "[]", whole[:-9], '{"a": "b"}', swapped):
        kept.write_text(damage)
        data = Data()
        inputs().open(tmp_path, data, "toy", "float32")
        assert data.read == 1
        assert data.decoded == []  # the rows themselves are still there


def test_words_and_live_representations_are_not_stored(tmp_path):
    words = BatchFeatures(Toy(), FeatureSpec("pooled"), FeatureSpec("words"))
    words.open(tmp_path, Data(), "toy", "float32")
    assert words.images is not None
    assert words.texts is None
    assert not list(tmp_path.glob("text-*"))
    live = inputs(frozen=False)
    live.open(tmp_path, Data(), "toy", "float32")
    assert live.images is live.texts is None
    live.backbone.requires_grad_()
    assert live.encode_batch("image", BATCH).values.requires_grad
    assert not inputs().encode_batch("image", BATCH).values.requires_grad
    plain, dropping = inputs(), inputs(dropout=0.5)
    dropping.backbone.train()
    for side in ("image", "text"):
        assert_equal(dropping.encode_batch(side, BATCH), plain.encode_batch(side, BATCH))
    assert dropping.backbone.training
    assert dropping.backbone.drop.training
