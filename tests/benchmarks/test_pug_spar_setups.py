import itertools

import pytest

from tests.refusals import refused
from vlmtune.benchmarks.pug_spar import BLANK, DEFINITIONS, HARD, SparRow, make

WORLDS = ("Desert", "SaltFlats")  # of ten
ANIMALS = (BLANK, *(f"Animal{i}" for i in range(32)))
GROUPS = [("left", "Default", "Default"), ("bottom", "Default", "Default")]
GROUPS += [("left", "Blue", "Red"), ("left", "Grass", "Stone")]
SIZES = {  # set-up -> images and candidates of one world
    "scene": (4, 1),
    "single_default": (128, 33),
    "single_blue_red": (64, 33),
    "single_grass_stone": (64, 33),
    "single_left_right": (64, 64),
    "single_bottom_top": (64, 64),
    "double_default": (2048, 528),
    "double_blue_red": (1024, 528),
    "double_grass_stone": (1024, 528),
    "double_left_right": (992, 992),
    "double_bottom_top": (992, 992),
    "attributes_blue_red": (992, 992),
    "attributes_grass_stone": (992, 992),
}


@pytest.fixture(scope="module")
def grid():
    rows = []
    for group, first, second, world in itertools.product(GROUPS, ANIMALS, ANIMALS, WORLDS):
        rows.append(SparRow(f"{len(rows)}.png", world, first, second, *group))
    return rows


def test_the_grid_has_the_published_size_and_images_of_each_set_up(grid):
    assert 10 * len(grid) // len(WORLDS) == 43560
    assert list(DEFINITIONS) == list(SIZES)
    with refused("'scene', got none among 1 rows"):
        make("scene", grid[100:101], True, False)


@pytest.mark.parametrize("name", SIZES)
def test_each_set_up_has_the_published_size(grid, name):
    images, among = SIZES[name]
    flats = make(name, [row for row in grid if row.world == "SaltFlats"], False, False)
    full = make(name, grid, True, False)
    assert (len(flats.rows), len(flats.candidates)) == (images, among)
    assert (len(full.rows), len(full.candidates)) == (2 * images, 2 * among)
    assert (full.negatives is not None) == (name in HARD)
