"""The set-ups on the published grid: their sizes and the published percentages."""

import itertools

import pytest

from tests.refusals import refused
from vlmtune.benchmarks.pug_spar import BLANK, DEFINITIONS, HARD, SparRow, make

WORLDS = ("Desert", "SaltFlats")  # of ten
NAMES = (
    "Goldfish Caribou Elephant Camel Penguin Zebra Bear Beaver Cattle Armadillo Gecko Crow "
    "Scorpion GiantTortoise Tarantula Rhinoceros Dolphin EarlessSeal Goat Hippopotamus Horse "
    "Impala Lion Orca Pig Rabbit Squirrel Chicken WhiteShark Anlylosaurus BlackRockFish "
    "PoisonDartFrog"
)
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
    animals = (BLANK, *NAMES.split())
    return [
        SparRow(f"{i}.png", world, first, second, *group)
        for i, (group, first, second, world) in enumerate(
            itertools.product(GROUPS, animals, animals, WORLDS)
        )
    ]


def test_the_grid_has_the_published_size_and_images_of_each_set_up(grid):
    assert 10 * len(grid) // len(WORLDS) == 43560
    assert list(DEFINITIONS) == list(SIZES)
    with refused("'scene', got none among 1 rows"):
        make("scene", grid[100:101], True, False)


@pytest.mark.parametrize("name", SIZES)
def test_each_set_up_has_the_published_size(grid, name):
    images, among = SIZES[name]
    flats = make(name, [row for row in grid if row.world == "SaltFlats"], False, False)
    without, full = make(name, grid, False, False), make(name, grid, True, False)
    assert (len(flats.rows), len(flats.candidates)) == (images, among)
    assert len(without.rows) == len(full.rows) == 2 * images
    assert len(without.candidates) == (2 if name == "scene" else among)
    assert len(full.candidates) == 2 * among
    for setup in (flats, without, full):
        assert set(setup.captions) <= set(setup.candidates)
        assert set(setup.negatives or ()) <= set(setup.candidates)
    assert (full.negatives is not None) == (name in HARD)


@pytest.mark.parametrize(
    ("name", "percentages"),
    [
        ("single_default", (57.81, 75.78, 91.41, 88.28, 94.53, 64.06, 78.91, 67.19, 64.84)),
        ("single_blue_red", (48.44, 54.69, 71.88, 70.31, 75.00, 84.38, 42.19, 53.12)),
        ("single_left_right", (29.69, 37.50, 39.06, 40.62, 50.00, 51.56, 32.81, 42.19)),
        ("double_default", (24.56, 32.47, 68.85, 59.67, 72.66, 80.96, 18.55, 40.58, 24.71)),
        ("double_grass_stone", (9.38, 18.16, 31.35, 30.47, 30.18, 47.85, 6.84, 11.33, 5.96)),
        ("double_left_right", (14.11, 14.92, 38.10, 30.85, 40.83, 42.14, 13.71, 23.99, 14.01)),
        ("attributes_blue_red", (4.44, 6.65, 19.15, 15.52, 20.56, 29.84, 6.15, 10.28, 5.44)),
    ],
)
def test_published_percentages_are_counts_of_these_images(name, percentages):
    # Table 11, one background.
    n = SIZES[name][0]
    possible = {f"{100 * k / n:.2f}" for k in range(n + 1)}
    # 53.125 is printed as 53.12, and so is 40.625 as 40.62.
    assert {f"{p:.2f}" for p in percentages} <= possible
