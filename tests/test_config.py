import pytest
from torch import nn

from vlmtune.config import Configured, instantiate
from vlmtune.errors import UserError
from vlmtune.objectives.base import Objective
from vlmtune.objectives.pair_bce import PairBCE
from vlmtune.pairs import ChosenPairs, PairPolicy


class Box(Configured):
    def __init__(self, side: int, colour: str = "red") -> None:
        self.side = side


class Labelled(Box):
    def __init__(self, label: str) -> None:
        super().__init__(side=len(label))
        self.label = label


class Layer(Configured, nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)


class Plain(Box):
    pass


@pytest.mark.parametrize(
    ("made", "arguments"),
    [
        (lambda: Box(2), {"side": 2, "colour": "red"}),
        (lambda: Box(colour="blue", side=1), {"side": 1, "colour": "blue"}),
        (lambda: Labelled("abc"), {"label": "abc"}),
        (lambda: Plain(5), {"side": 5, "colour": "red"}),
        (lambda: Layer(), {"width": 3}),
    ],
)
def test_the_outermost_constructor_is_recorded_with_its_defaults(made, arguments):
    box = made()
    assert box.init_args == arguments
    assert box.spec()["init_args"] == arguments
    assert box.spec()["class_path"] == f"{__name__}.{type(box).__name__}"


def test_a_module_keeps_its_state_dict():
    assert Layer().state_dict().keys() == {"linear.weight", "linear.bias"}


def test_the_spec_is_a_copy():
    box = Box(2)
    box.spec()["init_args"]["side"] = 7
    assert box.spec()["init_args"]["side"] == 2


def test_a_wrong_call_is_still_a_type_error():
    with pytest.raises(TypeError):
        Box()
    with pytest.raises(TypeError):
        Box(2, size=3)


def test_a_spec_makes_the_object_again():
    pairs = ChosenPairs(2, hard_negatives=1)
    again = instantiate(pairs.spec(), PairPolicy)
    assert type(again) is ChosenPairs
    assert again.spec() == pairs.spec()
    assert (again.positives, again.hard_negatives, again.random_negatives) == (2, 1, 1)
    bare = {"class_path": "vlmtune.objectives.pair_bce.PairBCE"}
    assert isinstance(instantiate(bare, Objective), PairBCE)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "dotted path of a PairPolicy, got ''"),
        ({"class_path": "ChosenPairs"}, "got 'ChosenPairs'"),
        ({"class_path": "vlmtune.pears.ChosenPairs"}, "No module named 'vlmtune.pears'"),
        ({"class_path": "vlmtune.pairs.ChosenPears"}, "no attribute 'ChosenPears'"),
        ({"class_path": "vlmtune.objectives.pair_bce.PairBCE"}, "name a subclass of it"),
        ({"class_path": "vlmtune.pairs.torch"}, "name a subclass of it"),
        ({"class_path": "vlmtune.pairs.ChosenPairs", "init_args": {"herd": 1}}, "'herd'"),
        (
            {"class_path": "vlmtune.pairs.ChosenPairs", "init_args": {"hard_negatives": -1}},
            "hard_negatives=-1",
        ),
    ],
)
def test_a_wrong_spec_is_one_line(spec, said):
    with pytest.raises(UserError) as error:
        instantiate(spec, PairPolicy)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
