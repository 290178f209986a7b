"""Which part of an image each word of a caption reads, for joint adapters that show it.

In: a model, images and captions. Out: a map of weights over the image for each word.
Never: a map of an adapter that has none (`gives_reading`), or a guess of one.
"""

from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vlmtune.adapters.base import Adapter, JointAdapter
from vlmtune.backbones.base import Backbone
from vlmtune.backbones.evaluation_mode import evaluation_mode
from vlmtune.benchmarks.base import Benchmark
from vlmtune.errors import UserError
from vlmtune.evaluation.scorer import Scorer
from vlmtune.features.pictures import Picture, as_pictures, read_picture
from vlmtune.results.result import Result, WordMaps
from vlmtune.types import ImageRef

MOST_WORDS = 16  # of a caption in the report
LARGEST = 512  # width or height of the picture that shows which part a model sees


class Reading(NamedTuple):
    """What each word of a caption reads.

    Attributes:
        words: The words, in order.
        maps: The weight of each patch for each word; they sum to 1 over the patches.
        box: Left, top, width and height of the patches together, as fractions of the image.
    """

    words: tuple[str, ...]
    maps: Float[Tensor, "words rows columns"]
    box: tuple[float, float, float, float]


def read_words(
    backbone: Backbone, adapter: Adapter, image: Picture | str | Path, caption: str
) -> Reading:
    """Returns what each word of `caption` reads in `image`.

    Words are what blanks separate. A word of several tokens has the mean of their maps; a word
    beyond the longest caption of the model is left out.

    Raises:
        UserError: The adapter does not show what it reads, or image or caption cannot be encoded.
    """
    if not isinstance(adapter, JointAdapter) or not adapter.gives_reading:
        raise UserError(
            f"expected an adapter that shows what its words read, got {type(adapter).__name__}: "
            "use GroundedWords, MM-Adapter or MM-Pred with a joint encoder (fusion Mdetr, Flava or "
            "FiberMM), or another JointAdapter with gives_reading = True"
        )
    picture = read_picture(*as_pictures([image]))
    words = caption.split()
    # The caption up to each word: the tokens that a word adds to the words before it belong to it.
    # An empty caption has one beginning, and the backbone says what is wrong with it.
    beginnings = list(accumulate(words, "{} {}".format)) or [caption]
    with evaluation_mode(backbone, adapter):
        pixels = backbone.preprocess(picture)[None].to(backbone.device)
        image_features = backbone.encode_image(pixels, adapter.image_input)
        text_features = backbone.encode_text(beginnings, adapter.text_input)
        prepared_image = adapter.prepare_image(image_features)
        # The last beginning is the whole caption.
        prepared_text = adapter.prepare_text(text_features[-1:].trimmed())
        weights = adapter.reading(prepared_image, prepared_text)[0]

    # A beginning ends with the special tokens of the model, which belong to no word.
    lead, trail = backbone.text_special
    word_ends = text_features.lengths - trail
    ends = [lead, *word_ends.tolist()]
    kept_words, parts = [], []
    for word, (start, end) in zip(words, pairwise(ends), strict=True):
        # A word beyond the longest caption of the model adds no token.
        if end > start:
            kept_words.append(word)
            parts.append(weights[start:end].mean(dim=0))
    maps = torch.stack(parts).float().cpu()
    # A backbone gives patches in a row; where images keep their shape, no grid holds for all.
    if backbone.images_differ:
        raise UserError(
            "expected a backbone whose images have one shape, got "
            f"{type(backbone).__name__}, whose images keep theirs: choose another"
        )
    maps = maps.unflatten(1, backbone.image_grid)
    box = seen_box(backbone.preprocess, picture.size)
    return Reading(tuple(kept_words), maps, box)


def readings(scorer: Scorer, benchmark: Benchmark[Any], result: Result) -> tuple[WordMaps, ...]:
    """What the words of true captions read, in the first right item and in the first wrong one.

    Nothing for an adapter that does not show it, or for items without a short list of captions. A
    pair that has no reading is left out. Every rank computes the same.
    """
    adapter = scorer.adapter
    items = benchmark.items.evaluated
    shows = isinstance(adapter, JointAdapter) and adapter.gives_reading
    if not shows or len(items) != len(result.outcomes):
        return ()
    maps = []
    for correct in (True, False):
        for item, outcome in zip(items, result.outcomes, strict=True):
            # A statement may be false, as those of VSR.
            if not item.true:
                continue
            image = item.images[0]
            caption = item.true[0]
            if outcome != correct or len(caption.split()) > MOST_WORDS:
                continue
            # An adapter may refuse the words of a caption's beginning alone.
            with suppress(UserError):
                reading = read_words(scorer.backbone, adapter, image, caption)
                maps.append(_word_maps(reading, image, caption, correct))
            break  # one item of each kind is shown
    return tuple(maps)


def _word_maps(reading: Reading, image: ImageRef, caption: str, correct: bool) -> WordMaps:
    texts = []
    for weights in reading.maps:
        # Two digits suffice for a picture, and keep the report small.
        percents = [f"{100 * weight:.2f}" for weight in weights.flatten().tolist()]
        texts.append(" ".join(percents))
    return WordMaps(
        caption=caption,
        image=image,
        words=reading.words,
        maps=tuple(texts),
        columns=reading.maps.shape[2],
        box=reading.box,
        correct=correct,
    )


def seen_box(
    preprocess: Callable[[Image.Image], Tensor], size: tuple[int, int]
) -> tuple[float, float, float, float]:
    """Left, top, width and height of what a model sees of images of a size, as fractions.

    Whatever `preprocess` resizes and crops, it does so to a picture whose red grows to the right
    and whose green grows downwards; straight lines through what comes out give the box. Padding
    makes the box larger than the image. Each channel of pixel values has a linear scale of its own.

    Example:
        >>> def middle(image):  # the middle half of the width
        ...     left = image.width // 4
        ...     crop = image.crop((left, 0, image.width - left, image.height)).resize((32, 32))
        ...     return torch.from_numpy(np.asarray(crop).copy()).movedim(2, 0) / 127.5 - 1
        >>> [round(abs(x), 2) for x in seen_box(middle, (400, 200))]
        [0.25, 0.0, 0.5, 1.0]
    """
    # A smaller picture of the same proportions is preprocessed to the same part, and sooner.
    shrink = max(1, max(size) / LARGEST)
    width, height = (max(1, round(side / shrink)) for side in size)
    x, y = np.meshgrid(_centres(width), _centres(height))
    # With a little of the other direction, rounding to 8 bits averages out over rows and columns.
    red = 0.9 * x + 0.1 * y
    green = 0.1 * x + 0.9 * y
    ramp = np.stack([red, green, np.zeros_like(x)], axis=2)

    def preprocessed(picture: NDArray[np.float64]) -> Tensor:
        levels = np.round(255 * picture).astype(np.uint8)
        return preprocess(Image.fromarray(levels)).double()

    seen = preprocessed(ramp)
    # Black and white pictures tell the scale of each channel, and where no padding is.
    seen_black = preprocessed(np.zeros_like(ramp))
    seen_white = preprocessed(np.ones_like(ramp))
    contrast = (seen_white - seen_black).abs().sum(dim=0)
    rows = _middle(contrast.sum(dim=1))
    columns = _middle(contrast.sum(dim=0))
    black = _channel_means(seen_black[:, rows, columns])
    white = _channel_means(seen_white[:, rows, columns])
    seen_red, seen_green, _ = (seen - black) / (white - black)
    # The inverse of the mixture above: 0.9 * 0.9 - 0.1 * 0.1 is 0.8.
    across = (0.9 * seen_red - 0.1 * seen_green) / 0.8
    down = (0.9 * seen_green - 0.1 * seen_red) / 0.8
    # Padding lies outside the ramps, so both lines are fitted to the middle alone.
    across_means = across[rows].mean(dim=0)
    down_means = down[:, columns].mean(dim=1)
    left, box_width = _line(across_means, columns)
    top, box_height = _line(down_means, rows)
    return left, top, box_width, box_height


def _channel_means(pixels: Float[Tensor, "3 rows columns"]) -> Float[Tensor, "3 1 1"]:
    return pixels.mean(dim=(1, 2), keepdim=True)


def _centres(n: int) -> NDArray[np.float64]:
    """Centres of n pixels, as fractions of their side."""
    return (np.arange(n) + 0.5) / n


def _middle(contrast: Float[Tensor, "n"]) -> slice:
    """The middle half, at least two, of the rows or columns with contrast: padding has none."""
    inside = (contrast > contrast.max() / 2).nonzero()
    quarter = len(inside) // 4
    first = int(inside[0]) + quarter
    return slice(first, first + max(2, len(inside) - 2 * quarter))


def _line(values: Float[Tensor, "n"], part: slice) -> tuple[float, float]:
    """Where a line through a part of the values starts, and how far it rises."""
    centres = _centres(len(values))[part]
    slope, intercept = np.polyfit(centres, values.numpy()[part], 1)
    return float(intercept), float(slope)
