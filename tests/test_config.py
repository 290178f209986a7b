import json
from collections.abc import Iterable
from enum import Enum
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.refusals import refused
from tests.tiny import plugin
from vlmtune.adapters.base import Adapter
from vlmtune.config import Configured, differences, instantiate
from vlmtune.objectives import Objective, PairBCE
from vlmtune.pairs.base import PairPolicy


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


class Shelf(Configured):
    def __init__(self, *, box, **more) -> None:
        self.box, self.more = box, more


class Wood(str, Enum):  # noqa: UP042 (as those of users may be)
    OAK = "oak"


class Drawer(Configured):
    def __init__(
        self,
        sizes: tuple[int, ...] = (),
        file: Path | None = None,
        wood: Wood | None = None,
        weights: "dict[int, float] | None" = None,
        names: Iterable[str] = (),
        depth: float = 1.0,
    ) -> None:
        self.given = sizes, file, wood, weights, names, depth


class Chest(Drawer):
    def __init__(self, lid: bool = False, **options) -> None:
        super().__init__(**options)


ARGUMENTS = [
    (Path("a") / "b", "a/b"),
    ((1, (2.5, "x")), [1, [2.5, "x"]]),
    ({"sizes": (1, 2), 3: Path("c")}, {"sizes": [1, 2], "3": "c"}),
    ([None, True, False], [None, True, False]),
    ([np.float64(0.5), np.float32(0.5), np.int64(2), np.str_("x")], [0.5, 0.5, 2, "x"]),
    (Fraction(1, 4), 0.25),
]


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


@pytest.mark.parametrize(("value", "plain"), ARGUMENTS)
def test_a_spec_is_plain_and_survives_json_and_torch(tmp_path, value, plain):
    spec = Shelf(box=value).spec()
    assert spec["init_args"] == {"box": plain}
    assert repr(spec["init_args"]["box"]) == repr(plain)  # True is not 1, nor np.True_
    assert json.loads(json.dumps(spec)) == spec
    torch.save(spec, tmp_path / "spec.pt")
    assert torch.load(tmp_path / "spec.pt", weights_only=True) == spec
    assert instantiate(spec, Shelf).spec() == spec


@pytest.mark.parametrize("kind", [Drawer, Chest])
def test_arguments_come_back_in_the_types_of_the_constructor(kind):
    given = ((1, 2), Path("a"), Wood.OAK, {3: 2}, ["x"], 2)
    drawer = kind(**dict(zip(Drawer().init_args, given, strict=True)))
    spec = json.loads(json.dumps(drawer.spec()))
    again = instantiate(spec, Drawer)
    assert again.given == given
    assert [type(value) for value in again.given[:3]] == [tuple, type(Path()), Wood]
    assert json.dumps(again.spec()) == json.dumps(spec)  # 2 is not 2.0: digests differ


def test_configured_arguments_become_specs_and_are_made_again():
    shelf = Shelf(box=[Labelled("abc"), Box(2)], lid=Plain(side=1), plain={"class": "x"})
    spec = json.loads(json.dumps(shelf.spec()))
    assert spec == shelf.spec()
    assert spec["init_args"]["box"][0] == Labelled("abc").spec()
    assert spec["init_args"].keys() == {"box", "lid", "plain"}
    again = instantiate(spec, Shelf)
    assert again.spec() == spec
    assert [type(box) for box in again.box] == [Labelled, Box]
    assert (again.box[0].label, again.more["lid"].side) == ("abc", 1)
    assert again.more["plain"] == {"class": "x"}


@pytest.mark.parametrize("value", [object(), [len], {"a": torch.ones(1)}, {1, 2}])
def test_what_no_file_can_hold_is_refused(value):
    with refused("in box of Shelf, got "):
        Shelf(box=value).spec()


def test_a_spec_within_a_spec_must_be_configured():
    spec = Shelf(box={"class_path": "os.system", "init_args": {"command": "true"}}).spec()
    with refused("name a subclass of it"):
        instantiate(spec, Shelf)


def test_a_wrong_call_is_still_a_type_error():
    with pytest.raises(TypeError):
        Box(2, size=3)


def test_a_spec_needs_no_arguments():
    bare = {"class_path": "vlmtune.objectives.pair_bce.PairBCE"}
    assert isinstance(instantiate(bare, Objective), PairBCE)
    shelf = instantiate({"class_path": f"{__name__}.Shelf", "init_args": {"box": bare}}, Shelf)
    assert isinstance(shelf.box, PairBCE)


MIXED = "vlmtune.pairs.mixed_pairs.MixedPairs"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "dotted path of PairPolicy, got ''"),
        ({"class_path": "MixedPairs"}, "got 'MixedPairs'"),
        ({"class_path": "vlmtune.pears.MixedPairs"}, "No module named 'vlmtune.pears'"),
        ({"class_path": "vlmtune.pairs.mixed_pairs.MixedPears"}, "no attribute 'MixedPears'"),
        ({"class_path": "vlmtune.objectives.pair_bce.PairBCE"}, "expected a PairPolicy, got"),
        ({"class_path": "vlmtune.pairs.base.torch"}, "name a subclass of it"),
        (plugin("pairs.mixed_pairs.MixedPairs", herd=1), "'herd'"),
        (plugin("pairs.mixed_pairs.MixedPairs", hard_negatives=-1), "as hard_negatives of"),
        (plugin("pairs.mixed_pairs.MixedPairs", positives="x"), "as positives of"),
        ({"class_path": MIXED, "init_args": []}, "expected class_path and init_args of PairPolicy"),
        ({"class_path": True}, "expected the dotted path of PairPolicy, got True"),
        ({"class_path": "../../etc/passwd"}, "expected the dotted path of PairPolicy"),
    ],
)
def test_a_wrong_spec_is_one_line(spec, said):
    with refused() as error:
        instantiate(spec, PairPolicy)
    assert said in str(error.value)


def test_differences_of_nested_specs():
    def shelf(box, **more):
        return Shelf(box=box, **more).spec()

    def found(one, other):
        return differences(one, other, "shelf", "the file")

    one = shelf(Box(2), sizes=[1, 2], depth=None)
    assert found(one, shelf(Box(2), sizes=[1, 2], depth=None)) == []
    assert found(one, shelf(Box(3), sizes=[1, 2])) == [
        "shelf.init_args.box.init_args.side 2 here, 3 in the file",
        "shelf.init_args.depth None here, nothing in the file",
    ]
    assert found(one, shelf(Labelled("aa"), sizes=[1], depth=None)) == [
        f"shelf.init_args.box.class_path '{__name__}.Box' here, '{__name__}.Labelled' in the file",
        "shelf.init_args.sizes [1, 2] here, [1] in the file",
    ]


def test_the_article_fits_the_kind():
    with refused("expected an Adapter, got"):
        instantiate({"class_path": "vlmtune.errors.UserError"}, Adapter)
