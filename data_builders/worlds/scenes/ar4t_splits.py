"""Which of PUG:AR4T's scenes a split has.

In: a form, a split and a number of pairs. Out: series of scenes.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

from data_builders.worlds.scenes.ar4t_paper import PaperPairs, PaperSingles
from data_builders.worlds.scenes.ar4t_scenes import AR4TPairs, AR4TSingles, singles_beside
from data_builders.worlds.scenes.sampling import WorldSpec
from data_builders.worlds.scenes.series import Series

AR4TForm = Literal["world", "paper"]
SINGLES = {"train": "ar4t_single", "test": "ar4t_single_test"}  # splits of scenes of one object
_TEST_REPEATS = 5  # scenes of an attribute alone in the test split of the paper


def pairs_of_form(form: AR4TForm) -> type[AR4TPairs]:
    """Returns the series of scenes with hard negatives."""
    return PaperPairs if form == "paper" else AR4TPairs


def ar4t_splits(
    form: AR4TForm, split: str, pairs: int, spec: WorldSpec, seed: Callable[[str], int]
) -> Iterator[tuple[str, Series, int]]:
    """Yields the name, the series and the number of scenes of each part of a split.

    Scenes of one object are in both splits of the paper, and in the world's form in training alone.

    Args:
        form: "world", or "paper" for that of appendix B.5.
        split: "train" or "test".
        pairs: The items of two scenes.
        spec: The world.
        seed: The seed of each part by its name.
    """
    two = replace(spec, min_objects=2, max_objects=2)
    name = f"ar4t_{split}"
    yield name, pairs_of_form(form)(two, seed(name)), 2 * pairs
    if split == "test" and form == "world":
        return
    one = replace(spec, min_objects=1, max_objects=1)
    repeats = _TEST_REPEATS if split == "test" else 1
    unary, isolated = singles_beside(pairs, one, repeats)
    singles = PaperSingles if form == "paper" else AR4TSingles
    yield SINGLES[split], singles(one, seed(SINGLES[split]), unary), unary + isolated
