"""Eleven pictures to distract with, computed here, so that no file is needed.

In: the name of a picture. Out: the picture. Never: randomness that another call would change.
"""

from functools import cache

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from PIL import Image

from vlmtune.probing.colours import to_image

SIDE = 256
Grid = Float[ndarray, "h w"]


@cache
def draw_distraction(name: str) -> Image.Image:
    """Returns a picture, RGB, 256 pixels wide and high.

    Example:
        >>> draw_distraction("checkerboard").getpixel((0, 0))
        (40, 60, 160)
    """
    y, x = np.mgrid[:SIDE, :SIDE].astype(np.float32) / SIDE
    return to_image(_PAINTERS[name](x, y))


def _mix(amount: Grid, first: tuple, second: tuple) -> ndarray:
    """Colours between `first`, where the amount is 0, and `second`, where it is 1."""
    one = np.array(first, dtype=np.float32)
    other = np.array(second, dtype=np.float32)
    return one + np.clip(amount, 0, 1)[..., None] * (other - one)


def _rings(x: Grid, y: Grid) -> ndarray:
    radius = np.hypot(x - 0.5, y - 0.5)
    return _mix(np.floor(radius * 16) % 2, (250, 240, 220), (200, 40, 60))


def _checkerboard(x: Grid, y: Grid) -> ndarray:
    return _mix((np.floor(8 * x) + np.floor(8 * y)) % 2, (40, 60, 160), (245, 220, 90))


def _hills(x: Grid, y: Grid) -> ndarray:
    picture = _mix(y / 0.7, (60, 130, 220), (250, 220, 180))
    sun = np.hypot(x - 0.72, y - 0.25) < 0.1
    picture[sun] = (255, 240, 120)
    for height, colour in ((0.55, (90, 140, 90)), (0.68, (50, 110, 60)), (0.82, (30, 70, 40))):
        picture[y > height + 0.06 * np.sin(12 * x + 40 * height)] = colour
    return picture


def _clouds(x: Grid, y: Grid) -> ndarray:
    parts = []
    # Each octave has twice the frequency and half the height of the one before.
    for i in range(5):
        across = np.sin(2**i * (5 * x + 2 * np.sin(3 * y + i)) + 7 * i)
        down = np.cos(2**i * (4 * y + np.sin(4 * x + i)) + 3 * i)
        parts.append(across / 2**i + down / 2**i)
    return _mix(0.5 + np.sum(parts, axis=0) / 4, (70, 130, 210), (255, 255, 255))


def _bricks(x: Grid, y: Grid) -> ndarray:
    row = np.floor(10 * y)
    along = 5 * x + 0.5 * (row % 2)  # every second row starts half a brick later
    mortar = (along % 1 < 0.05) | (10 * y % 1 < 0.12)
    shade = np.sin(13 * row + 7 * np.floor(along)) / 2 + 0.5
    picture = _mix(shade, (150, 60, 40), (190, 90, 60))
    picture[mortar] = (200, 195, 185)
    return picture


def _mosaic(x: Grid, y: Grid) -> ndarray:
    generator = np.random.default_rng(7)
    points = generator.random((40, 2))
    colours = generator.integers(30, 256, (40, 3))
    distance = np.hypot(x[..., None] - points[:, 0], y[..., None] - points[:, 1])
    return colours[distance.argmin(axis=-1)].astype(np.float32)


def _plaid(x: Grid, y: Grid) -> ndarray:
    across, down = np.floor(12 * x) % 3 == 0, np.floor(12 * y) % 3 == 0
    return _mix((across.astype(np.float32) + down) / 2, (30, 90, 60), (210, 40, 40))


def _spiral(x: Grid, y: Grid) -> ndarray:
    angle = np.arctan2(y - 0.5, x - 0.5)
    radius = np.hypot(x - 0.5, y - 0.5)
    return _mix(0.5 + 0.5 * np.sin(3 * angle + 40 * radius), (60, 20, 90), (250, 160, 60))


def _dots(x: Grid, y: Grid) -> ndarray:
    inside = np.hypot(9 * x % 1 - 0.5, 9 * y % 1 - 0.5) < 0.32
    return _mix(inside.astype(np.float32), (240, 240, 250), (20, 140, 150))


def _skyline(x: Grid, y: Grid) -> ndarray:
    picture = _mix(y, (20, 20, 60), (240, 140, 90))
    column = np.floor(14 * x)
    house = y > 0.35 + 0.25 * (np.sin(5.3 * column) * 0.5 + 0.5)
    picture[house] = (25, 25, 35)
    window = (42 * x % 1 < 0.4) & (30 * y % 1 < 0.4)
    picture[house & window] = (250, 220, 120)
    return picture


def _ripples(x: Grid, y: Grid) -> ndarray:
    first = np.sin(60 * np.hypot(x - 0.2, y - 0.3))
    second = np.sin(45 * np.hypot(x - 0.9, y - 0.8))
    return _mix(0.5 + 0.25 * (first + second), (0, 60, 90), (160, 230, 230))


# The paper's training takes the first five, its testing all eleven.
_ALL = (_rings, _checkerboard, _hills, _clouds, _bricks, _mosaic, _plaid, _spiral, _dots, _skyline)
_PAINTERS = {painter.__name__[1:]: painter for painter in (*_ALL, _ripples)}
DISTRACTIONS = tuple(_PAINTERS)
