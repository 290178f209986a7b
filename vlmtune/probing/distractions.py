"""Eleven pictures to distract with, computed here, so that no file is needed.

In: the name of a picture. Out: the picture. Never: randomness that another call would change.
"""

from functools import cache

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from PIL import Image

from vlmtune.probing.colours import to_image

SIDE = 256  # pixels; pictures are scaled to the image from here
Grid = Float[ndarray, "h w"]
RGB = tuple[int, int, int]

CLOUDLESS_BLUE = (70, 130, 210)
CREAM = (250, 240, 220)
CRIMSON = (200, 40, 60)
DARK_BRICK = (150, 60, 40)
DEEP_SEA = (0, 60, 90)
DUSK_ORANGE = (240, 140, 90)
FOAM = (160, 230, 230)
LAMP_YELLOW = (250, 220, 120)
LIGHT_BRICK = (190, 90, 60)
MORTAR = (200, 195, 185)
NIGHT_BLUE = (20, 20, 60)
ORANGE = (250, 160, 60)
PALE_BLUE = (240, 240, 250)
PEACH = (250, 220, 180)
PINE_GREEN = (30, 90, 60)
ROYAL_BLUE = (40, 60, 160)
SCARLET = (210, 40, 40)
SKY_BLUE = (60, 130, 220)
SOOT = (25, 25, 35)
STRAW = (245, 220, 90)
SUN_YELLOW = (255, 240, 120)
TEAL = (20, 140, 150)
VIOLET = (60, 20, 90)
WHITE = (255, 255, 255)
# Height of each range of hills, from the top of the picture, and its colour.
HILLS = (
    (0.55, (90, 140, 90)),
    (0.68, (50, 110, 60)),
    (0.82, (30, 70, 40)),
)


@cache
def draw_distraction(name: str) -> Image.Image:
    """Returns a picture, RGB, 256 pixels wide and high.

    Example:
        >>> draw_distraction("checkerboard").getpixel((0, 0))
        (40, 60, 160)
    """
    # Every painter works on coordinates from 0 to 1, whatever the side is.
    pixels = np.mgrid[:SIDE, :SIDE].astype(np.float32)
    y, x = pixels / SIDE
    paint = _PAINTERS[name]
    return to_image(paint(x, y))


def _mix(amount: Grid, first: RGB, second: RGB) -> ndarray:
    """Colours between `first`, where the amount is 0, and `second`, where it is 1."""
    start = np.array(first, dtype=np.float32)
    end = np.array(second, dtype=np.float32)
    weight = np.clip(amount, 0, 1)[..., None]
    return start + weight * (end - start)


def _rings(x: Grid, y: Grid) -> ndarray:
    radius = np.hypot(x - 0.5, y - 0.5)
    # Even rings are cream, odd ones crimson.
    ring = np.floor(radius * 16)
    return _mix(ring % 2, CREAM, CRIMSON)


def _checkerboard(x: Grid, y: Grid) -> ndarray:
    column = np.floor(8 * x)
    row = np.floor(8 * y)
    return _mix((column + row) % 2, ROYAL_BLUE, STRAW)


def _hills(x: Grid, y: Grid) -> ndarray:
    picture = _mix(y / 0.7, SKY_BLUE, PEACH)
    sun = np.hypot(x - 0.72, y - 0.25) < 0.1
    picture[sun] = SUN_YELLOW
    # The nearest range comes last, as it covers the ranges behind it.
    for height, colour in HILLS:
        ridge = height + 0.06 * np.sin(12 * x + 40 * height)
        picture[y > ridge] = colour
    return picture


def _clouds(x: Grid, y: Grid) -> ndarray:
    waves = []
    for octave in range(5):
        # Each octave has twice the frequency and half the height of the octave before.
        frequency = 2**octave
        bent_x = 5 * x + 2 * np.sin(3 * y + octave)
        bent_y = 4 * y + np.sin(4 * x + octave)
        across = np.sin(frequency * bent_x + 7 * octave)
        down = np.cos(frequency * bent_y + 3 * octave)
        waves.append(across / frequency + down / frequency)
    height = np.sum(waves, axis=0)
    cover = 0.5 + height / 4
    return _mix(cover, CLOUDLESS_BLUE, WHITE)


def _bricks(x: Grid, y: Grid) -> ndarray:
    row = np.floor(10 * y)
    along = 5 * x + 0.5 * (row % 2)  # every second row starts half a brick later
    brick = np.floor(along)
    shade = np.sin(13 * row + 7 * brick) / 2 + 0.5
    picture = _mix(shade, DARK_BRICK, LIGHT_BRICK)
    upright_joint = along % 1 < 0.05
    level_joint = 10 * y % 1 < 0.12
    picture[upright_joint | level_joint] = MORTAR
    return picture


def _mosaic(x: Grid, y: Grid) -> ndarray:
    # Voronoi cells: a pixel has the colour of its nearest point.
    generator = np.random.default_rng(7)
    points = generator.random((40, 2))
    colours = generator.integers(30, 256, (40, 3))
    across = x[..., None] - points[:, 0]
    down = y[..., None] - points[:, 1]
    nearest = np.hypot(across, down).argmin(axis=-1)
    return colours[nearest].astype(np.float32)


def _plaid(x: Grid, y: Grid) -> ndarray:
    upright_stripe = np.floor(12 * x) % 3 == 0
    level_stripe = np.floor(12 * y) % 3 == 0
    # Two stripes that cross add up, as threads do in cloth.
    stripes = upright_stripe.astype(np.float32) + level_stripe
    return _mix(stripes / 2, PINE_GREEN, SCARLET)


def _spiral(x: Grid, y: Grid) -> ndarray:
    # The angle grows with the radius: three arms that wind around the middle.
    angle = np.arctan2(y - 0.5, x - 0.5)
    radius = np.hypot(x - 0.5, y - 0.5)
    arms = np.sin(3 * angle + 40 * radius)
    return _mix(0.5 + 0.5 * arms, VIOLET, ORANGE)


def _dots(x: Grid, y: Grid) -> ndarray:
    # Within each of 9 x 9 cells, coordinates around its middle.
    across = 9 * x % 1 - 0.5
    down = 9 * y % 1 - 0.5
    dot = np.hypot(across, down) < 0.32
    return _mix(dot.astype(np.float32), PALE_BLUE, TEAL)


def _skyline(x: Grid, y: Grid) -> ndarray:
    picture = _mix(y, NIGHT_BLUE, DUSK_ORANGE)
    column = np.floor(14 * x)
    # A sine out of step with the columns gives heights that look random.
    fraction = np.sin(5.3 * column) * 0.5 + 0.5
    roof = 0.35 + 0.25 * fraction
    house = y > roof
    picture[house] = SOOT
    window_column = 42 * x % 1 < 0.4
    window_row = 30 * y % 1 < 0.4
    picture[house & window_column & window_row] = LAMP_YELLOW
    return picture


def _ripples(x: Grid, y: Grid) -> ndarray:
    first_radius = np.hypot(x - 0.2, y - 0.3)
    second_radius = np.hypot(x - 0.9, y - 0.8)
    # Two sources of waves of different lengths, which add up where they meet.
    first = np.sin(60 * first_radius)
    second = np.sin(45 * second_radius)
    height = 0.5 + 0.25 * (first + second)
    return _mix(height, DEEP_SEA, FOAM)


# The paper's training takes the first five, its testing all eleven.
_ALL = (
    _rings,
    _checkerboard,
    _hills,
    _clouds,
    _bricks,
    _mosaic,
    _plaid,
    _spiral,
    _dots,
    _skyline,
    _ripples,
)
_PAINTERS = {painter.__name__.removeprefix("_"): painter for painter in _ALL}
DISTRACTIONS = tuple(_PAINTERS)
