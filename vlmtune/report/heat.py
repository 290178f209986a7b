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
DARK = 0.4  # brightness of what is not read
WARM = (255, 110, 0)  # colour of what is read most
TINT = 0.25  # part of this colour in what is read most
WHOLE = (0.0, 0.0, 1.0, 1.0)  # the box of a whole picture


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
    fractions = (values / full).clip(0, 1)
    # The square root shows small weights too, which would else look like none.
    heat_of_patches = np.sqrt(fractions)
    amount = _spread(heat_of_patches, picture.size, box)
    amount = amount[:, :, None]  # height x width x 1, beside three channels
    colour = np.asarray(picture.convert("RGB"), dtype=np.float32)
    grey = np.asarray(picture.convert("L"), dtype=np.float32)
    # From dark grey where nothing is read to warm colour where most is.
    dark = DARK * grey[:, :, None]
    warm = (1 - TINT) * colour + TINT * np.array(WARM)
    mixed = (1 - amount) * dark + amount * warm
    pixels = np.round(mixed).clip(0, 255)
    return Image.fromarray(pixels.astype(np.uint8))


def _spread(
    values: np.ndarray, size: tuple[int, int], box: tuple[float, float, float, float]
) -> np.ndarray:
    """The values of the patches as a value of each pixel, smooth, and 0 outside their box."""
    picture_width, picture_height = size
    # In pixels, at least one, however small the picture is.
    left = round(box[0] * picture_width)
    top = round(box[1] * picture_height)
    width = max(1, round(box[2] * picture_width))
    height = max(1, round(box[3] * picture_height))
    patches = Image.fromarray(values)
    smooth = patches.resize((width, height), Image.Resampling.BILINEAR)
    # The model may have seen only a part of the picture.
    mask = Image.new("F", size)
    mask.paste(smooth, (left, top))
    return np.asarray(mask).clip(0, 1)


def heat_views(readings: Sequence[WordMaps]) -> list[dict[str, Any]]:
    """For the page: each caption with a picture for each word; none where its image is gone."""
    out = []
    for reading in readings:
        picture = thumbnail(reading.image)
        if picture is None:
            continue
        picture.thumbnail((SIDE, SIDE))
        maps = []
        for text in reading.maps:
            weights = np.array(text.split(), dtype=np.float64)
            maps.append(weights.reshape(-1, reading.columns))
        # All words of a caption have one scale, its largest weight, so that they compare.
        largest = max(float(weights.max()) for weights in maps)
        words = []
        for word, weights in zip(reading.words, maps, strict=True):
            shown = heat(picture, weights, reading.box, largest)
            words.append({"word": word, "uri": encoded(shown)})
        view = {
            "caption": reading.caption,
            "name": reading.image.path.name,
            "correct": reading.correct,
            "uri": encoded(picture),
            "words": words,
        }
        out.append(view)
    return out
