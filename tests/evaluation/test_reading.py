"""What words read: which tokens are a word's, what a model sees of an image, and which items."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.refusals import refused
from tests.toy import Together, Toy
from vlmtune.adapters.zero_shot import ZeroShot
from vlmtune.benchmarks import (
    VSR,
    Aro,
    ColaSingle,
    MultipleChoice,
    Paired,
    PugSpar,
    Retrieval,
    Winoground,
    ZeroShotClassification,
)
from vlmtune.evaluation import Scorer, run_suite
from vlmtune.evaluation.reading import MOST_WORDS, read_words, seen_box
from vlmtune.types import FeatureSpec


class Letters(Toy):
    """Each letter is a token, blanks too; the image is resized to 2 x 2 pixels."""

    def preprocess(self, image):
        pixels = np.asarray(image.resize((2, 2), Image.Resampling.BOX), dtype=np.float64)
        return torch.from_numpy(pixels / 255).movedim(2, 0)


class Reads(Together):
    """Token t reads patch t modulo 4."""

    gives_reading = True

    def __init__(self):
        super().__init__()
        self.image_input = self.text_input = FeatureSpec("tokens", -1, True)

    def score_pairs(self, image, text):
        return (image.values[:, :, None] * text.values[:, None]).sum(dim=(1, 2, 3))

    def reading(self, image, text):
        patches = torch.arange(text.token_count) % image.token_count
        return torch.eye(image.token_count)[patches].expand(len(image), -1, -1)


@pytest.fixture
def model():
    backbone, adapter = Letters(), Reads()
    adapter.attach(backbone)
    return backbone, adapter.train()


def test_a_word_has_the_mean_of_its_tokens_special_and_cut_ones_left_out(model, monkeypatch):
    """Of "ab c" the first word has tokens 0 and 1, the second 2 (the blank) and 3."""
    words, maps, box = read_words(model[0], model[1], Image.new("RGB", (8, 8)), " ab  c")
    assert words == ("ab", "c")
    assert maps.tolist() == [[[0.5, 0.5], [0, 0]], [[0, 0], [0.5, 0.5]]]
    assert box == pytest.approx((0, 0, 1, 1), abs=0.01)
    assert model[1].training  # as before
    backbone, adapter = model
    encode = backbone.encode_text

    def with_ends(texts, spec):  # "<", at most 4 letters, ">"
        return encode([f"<{text[:4]}>" for text in texts], spec)

    monkeypatch.setattr(backbone, "encode_text", with_ends)
    backbone.text_special = (1, 1)
    words, maps, _ = read_words(backbone, adapter, Image.new("RGB", (8, 8)), "ab c defg")
    assert words == ("ab", "c")
    assert maps.tolist() == [[[0, 0.5], [0.5, 0]], [[0.5, 0], [0, 0.5]]]


def test_other_adapters_are_refused(model):
    image = Image.new("RGB", (8, 8))
    for adapter in (Together(), ZeroShot()):
        with refused(f"expected an adapter that shows .*, got {type(adapter).__name__}"):
            read_words(model[0], adapter, image, "a")
    words = model[0].encode_text(["a"], FeatureSpec("pooled", -1, True))
    with pytest.raises(NotImplementedError):
        Together().reading(words, words)


@pytest.mark.parametrize("size", [(200, 100), (64, 64), (90, 240)])
def test_the_box_is_what_a_centre_crop_leaves(size):
    def preprocess(image):
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        crop = image.crop((left, top, left + side, top + side)).resize((32, 32))
        return torch.from_numpy(np.asarray(crop).copy()).movedim(2, 0) / 64 - 3

    width, height = size
    side = min(size)
    expected = ((width - side) / 2 / width, (height - side) / 2 / height)
    expected += (side / width, side / height)
    assert seen_box(preprocess, size) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("width", [160, 60])
def test_padding_makes_the_box_larger_than_the_image(width):
    def preprocess(image):
        side = max(image.size)
        padded = Image.new("RGB", (side, side))
        padded.paste(image, ((side - image.width) // 2, 0))
        return torch.from_numpy(np.asarray(padded.resize((64, 64))).copy()).movedim(2, 0) / 255

    margin = (200 - width) / 2 / width
    expected = (-margin, 0, 200 / width, 1)
    assert seen_box(preprocess, (width, 200)) == pytest.approx(expected, abs=0.02)


# One benchmark of each rule, and one with long captions.
KINDS = [Aro, Winoground, Retrieval, ColaSingle, ZeroShotClassification, VSR, PugSpar]


@pytest.mark.parametrize("kind", KINDS)
def test_readings_are_of_a_right_and_a_wrong_item(model, kind, tmp_path):
    benchmark = kind.fixture(tmp_path)
    (result,) = run_suite([benchmark], Scorer(*model)).results
    items = benchmark.items.evaluated
    for correct in (True, False):
        of_kind = [
            one
            for one, outcome in zip(items, result.outcomes, strict=False)
            if outcome == correct and one.true and len(one.true[0].split()) <= MOST_WORDS
        ]
        shown = [one for one in result.readings if one.correct is correct]
        if not of_kind or len(items) != len(result.outcomes):
            assert shown == []
            continue
        (one,), first = shown, of_kind[0]
        assert (one.image, one.caption) == (first.images[0], first.true[0])
        assert one.words == tuple(one.caption.split())
        for text in one.maps:
            numbers = [float(x) for x in text.split()]
            assert (len(numbers), one.columns) == (4, 2)
            assert sum(numbers) == pytest.approx(100, abs=0.03)
    if isinstance(benchmark, MultipleChoice | Paired) and of_kind:
        assert result.readings


def test_an_adapter_without_readings_leaves_none(model, tmp_path):
    backbone, adapter = model
    adapter.gives_reading = False
    benchmark = Winoground.fixture(tmp_path)
    (result,) = run_suite([benchmark], Scorer(backbone, adapter)).results
    assert result.readings == ()
