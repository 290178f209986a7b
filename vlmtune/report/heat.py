"""A map of weights as heat over its picture: what one word reads.

In: a picture and the weights of its patches. Out: a picture. Never: a weight of its own.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from vlmtune.report.media import encoded, thumbnail
from vlmtune.results.result import WordMaps

SIDE = 112  # pixels of the longer side of a picture in the report
DARK, WARM, TINT = 0.4, (255, 110, 0), 0.25  # of what is not read; the tint of what is read most
WHOLE = (0.0, 0.0, 1.0, 1.0)


def heat(
    picture: Image.Image,
    weights: Any,
    box: tuple[float, float, float, float] = WHOLE,
    largest: float | None = None,
) -> Image.Image:
    """Draws the weights over a picture: grey and dark where they are 0, warm where largest.

    Between them the heat is the square root of weight / `largest`.

    `weights` are at least 0, rows from the top: nested lists, an array or a tensor. `box` is the
    left, top, width and height of their patches, as fractions of the picture. `largest` is the
    weight of full heat, None for the largest one here; with that of all words of a caption, their
    pictures compare.

    Example:
        >>> shown = heat(Image.new("RGB", (64, 64), "white"), [[1.0, 0.0], [0.0, 0.0]])
        >>> shown.getpixel((4, 4)), shown.getpixel((60, 60))
        ((255, 219, 191), (102, 102, 102))
    """
    values = np.asarray(weights, dtype=np.float32)
    full = (largest or values.max()) or 1.0  # 1 where no patch has a weight
    values = np.sqrt((values / full).clip(0, 1))
    wide, high = picture.size
    left, top = round(box[0] * wide), round(box[1] * high)
    size = max(1, round(box[2] * wide)), max(1, round(box[3] * high))
    # The model may have seen a part of the picture only; what it did not see stays dark.
    mask = Image.new("F", picture.size)
    smooth = Image.fromarray(values).resize(size, Image.Resampling.BILINEAR)
    mask.paste(smooth, (left, top))
    amount = np.asarray(mask).clip(0, 1)
    amount = amount[:, :, None]  # height x width x 1, beside three channels
    colour = np.asarray(picture.convert("RGB"), dtype=np.float32)
    grey = np.asarray(picture.convert("L"), dtype=np.float32)
    warm = (1 - TINT) * colour + TINT * np.array(WARM)
    # From dark grey where nothing is read to warm colour where most is.
    shown = (1 - amount) * DARK * grey[:, :, None] + amount * warm
    shown = np.round(shown).clip(0, 255)
    return Image.fromarray(shown.astype(np.uint8))


def heat_views(readings: Sequence[WordMaps]) -> list[dict[str, Any]]:
    """For the page: each caption with a picture for each word; none where its image is gone."""
    out = []
    for one in readings:
        picture = thumbnail(one.image)
        if picture is None:
            continue
        picture.thumbnail((SIDE, SIDE))
        maps = []
        for text in one.maps:
            weights = np.array(text.split(), dtype=np.float64)
            maps.append(weights.reshape(-1, one.columns))
        # Full heat is that of the caption's largest weight, so that its words compare.
        largest = max(float(weights.max()) for weights in maps)
        words = []
        for word, weights in zip(one.words, maps, strict=True):
            uri = encoded(heat(picture, weights, one.box, largest))
            words.append({"word": word, "uri": uri})
        head = {"caption": one.caption, "name": one.image.path.name, "correct": one.correct}
        out.append({**head, "uri": encoded(picture), "words": words})
    return out
