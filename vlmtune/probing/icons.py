"""Ten icons, painted here, so that no font of pictures is needed.

In: the name of an icon. Out: its picture on a transparent ground. Never: randomness.
"""

import math
from functools import cache

from PIL import Image, ImageDraw

SIDE = 256  # pixels; icons are scaled down from here
MIDDLE = SIDE // 2
YELLOW = (255, 204, 50)
RED = (221, 46, 68)
GREEN = (62, 130, 60)
BLUE = (59, 136, 195)
BROWN = (120, 72, 40)
WHITE = (255, 255, 255)
DARK = (60, 40, 20)
PINK = (234, 89, 153)


@cache
def draw_icon(name: str) -> Image.Image:
    """Returns an icon, RGBA, 256 pixels wide and high.

    Example:
        >>> draw_icon("sun").getpixel((128, 128))
        (255, 204, 50, 255)
    """
    picture = Image.new("RGBA", (SIDE, SIDE))
    _PAINTERS[name](ImageDraw.Draw(picture))
    return picture


def _ring(count: int, radii: tuple[int, ...]) -> list[tuple[float, float]]:
    """`count` points around the middle from the top on, at the radii in turn."""
    points = []
    for i in range(count):
        angle = 2 * math.pi * i / count - math.pi / 2
        radius = radii[i % len(radii)]
        x = MIDDLE + radius * math.cos(angle)
        y = MIDDLE + radius * math.sin(angle)
        points.append((x, y))
    return points


def _grinning_face(pen: ImageDraw.ImageDraw) -> None:
    pen.circle((128, 128), 112, YELLOW)
    for x in (90, 166):
        pen.ellipse((x - 14, 70, x + 14, 118), DARK)
    pen.chord((60, 90, 196, 214), 0, 180, DARK)
    # The white chord covers all of the dark one but its rim: teeth in a mouth.
    pen.chord((72, 120, 184, 182), 0, 180, WHITE)


def _heart(pen: ImageDraw.ImageDraw) -> None:
    for x in (78, 178):
        pen.circle((x, 90), 58, RED)
    pen.polygon([(28, 118), (228, 118), (128, 236)], RED)


def _star(pen: ImageDraw.ImageDraw) -> None:
    pen.polygon(_ring(10, (116, 48)), YELLOW)


def _sun(pen: ImageDraw.ImageDraw) -> None:
    pen.polygon(_ring(24, (118, 76)), (255, 140, 30))
    pen.circle((128, 128), 70, YELLOW)


def _tree(pen: ImageDraw.ImageDraw) -> None:
    pen.rectangle((112, 170, 144, 244), BROWN)
    # From the top down, so that each branch covers the foot of the one above it.
    for top in (12, 70, 120):
        base = top + 80
        pen.polygon([(128, top), (50, base), (206, base)], GREEN)


def _house(pen: ImageDraw.ImageDraw) -> None:
    pen.rectangle((48, 118, 208, 236), (240, 220, 180))
    pen.polygon([(24, 122), (128, 20), (232, 122)], RED)
    pen.rectangle((108, 166, 148, 236), BROWN)


def _flower(pen: ImageDraw.ImageDraw) -> None:
    # The radius of a petal is so large that neighbours overlap.
    for x, y in _ring(6, (68,)):
        centre = (round(x), round(y))
        pen.circle(centre, 44, PINK)
    pen.circle((128, 128), 40, YELLOW)


def _fish(pen: ImageDraw.ImageDraw) -> None:
    pen.polygon([(170, 128), (246, 70), (246, 186)], BLUE)
    pen.ellipse((14, 70, 204, 186), BLUE)
    pen.circle((62, 112), 12, WHITE)


def _balloon(pen: ImageDraw.ImageDraw) -> None:
    pen.line((128, 180, 116, 246), DARK, 6)
    # After the string, whose upper end it covers.
    pen.ellipse((58, 12, 198, 178), RED)
    pen.polygon([(128, 172), (112, 194), (144, 194)], RED)


def _umbrella(pen: ImageDraw.ImageDraw) -> None:
    pen.line((128, 120, 128, 216), DARK, 10)
    pen.arc((84, 194, 134, 244), 0, 180, DARK, 10)
    # After the stick, which would show through the canopy.
    pen.pieslice((16, 24, 240, 236), 180, 360, (120, 80, 180))


# The paper's training takes the first five, its testing all ten.
_ALL = (
    _grinning_face,
    _heart,
    _star,
    _sun,
    _tree,
    _house,
    _flower,
    _fish,
    _balloon,
    _umbrella,
)
_PAINTERS = {painter.__name__.removeprefix("_"): painter for painter in _ALL}
ICONS = tuple(_PAINTERS)
