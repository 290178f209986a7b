"""Transformations that paint over an image: lines, a grid, walls of icons and of text.

In: an RGB image and parameters. Out: an RGB image of the same size. Never: randomness.
Source: Rashtchian et al. 2023, appendices C.2 and C.3.
"""

import math
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vlmtune.probing.icons import draw_icon
from vlmtune.probing.parameters import Real

RGB = tuple[int, int, int]
TEXT_HEIGHTS = 14  # an image is so many lines of text high
# Made up: no word of a language.
TEXTS = (
    "Vorpel trimsk andu glarfen mosk. ",
    "Qiblat zorn wephi duskra ollem! ",
    "Krynn fabbo teluse vint ark, ",
    "Jundro pselt mavic horrun bey? ",
    "Wuxel dranby ticcopo lem sarg; ",
    "Eftar bolumni crosk yavet dun. ",
    "Nibso quarl hendix potrem ulva, ",
    "Gofti splerra munz kadiv ropt! ",
    "Zebbin twolf arcasti grem onu. ",
    "Hulpra dextor vimb soonay kif? ",
)


def grid_overlay(image: Image.Image, colour: RGB) -> Image.Image:
    """Paints all even rows and all even columns, the first being row and column 0."""
    values = np.array(image)
    values[0::2] = colour
    values[:, 0::2] = colour
    return Image.fromarray(values, "RGB")


def line_overlay(
    image: Image.Image,
    width: Real,
    distance: Real,
    colour: RGB,
    angle: Real = 0.0,
) -> Image.Image:
    """Paints parallel lines.

    Args:
        image: The image.
        width: Of a line, in pixels.
        distance: From the start of one line to the start of the next, in pixels.
        colour: Of the lines.
        angle: From the horizontal, in degrees.
    """
    values = np.array(image)
    height, columns = values.shape[:2]
    y, x = np.mgrid[:height, :columns].astype(np.float32)
    # The distance of a pixel from a line through the corner, at the angle.
    turn = math.radians(angle)
    across = y * math.cos(turn) + x * math.sin(turn)
    # Rounding keeps a pixel at the start of a line on the line, whatever the error of the sine.
    painted = np.round(across, 3) % distance < width
    values[painted] = colour
    return Image.fromarray(values, "RGB")


def icon_overlay(image: Image.Image, icon: str, alpha: int, ratio: Real) -> Image.Image:
    """Paints a wall of one icon.

    Args:
        image: The image.
        icon: One of `vlmtune.probing.icons.ICONS`.
        alpha: Opacity of the icons, 255 being opaque.
        ratio: Width of the image divided by the width of an icon.
    """
    # An image narrower than the ratio would otherwise get icons of no width.
    side = max(1, round(image.width / ratio))
    picture = _icon(icon, side)
    wall = Image.new("RGBA", image.size)
    for top in range(0, image.height, side):
        for left in range(0, image.width, side):
            wall.paste(picture, (left, top))
    # The edge of an icon is partly transparent, so its opacity is scaled and not replaced.
    scaled = [value * alpha // 255 for value in range(256)]
    opacity = wall.getchannel("A").point(scaled)
    return Image.composite(wall.convert("RGB"), image, opacity)


def text_overlay(image: Image.Image, text: int, colour: RGB) -> Image.Image:
    """Paints a wall of the text `TEXTS[text]` in one colour."""
    ink = Image.new("RGB", image.size, colour)
    letters = _text_wall(TEXTS[text], image.size)
    return Image.composite(ink, image, letters)


@lru_cache(maxsize=256)
def _icon(name: str, side: int) -> Image.Image:
    icon = draw_icon(name)
    return icon.resize((side, side), Image.Resampling.LANCZOS)


@lru_cache(maxsize=64)
def _text_wall(text: str, size: tuple[int, int]) -> Image.Image:
    """Where the text covers an image of a size."""
    width, height = size
    wall = Image.new("L", size)
    # A font of nine tenths of a line leaves a gap between two lines.
    line = height / TEXT_HEIGHTS
    font = ImageFont.load_default(0.9 * line)
    pen = ImageDraw.Draw(wall)
    text_width = max(1.0, pen.textlength(text, font))
    # Twice the width, as each line starts somewhere inside the text.
    repeats = 1 + math.ceil(2 * width / text_width)
    for i in range(TEXT_HEIGHTS + 1):
        # Each line begins elsewhere, so that letters do not stand in columns.
        start = 3 * i % len(text)
        turned = text[start:] + text * repeats
        top = round(i * line)
        pen.text((0, top), turned, 255, font)
    return wall
