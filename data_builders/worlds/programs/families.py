"""The 90 question families: a program structure each, with its text templates.

In: nothing. Out: families. Never: values of parameters. The structures and their number are those
of the paper; the sentences are our own.
Source: Johnson et al. 2017, section 3 (question families).

| structure | families |
| --- | --- |
| zero to three hops | 4 x (exist, count, query of 4 attributes) = 24 |
| single-and | exist, count, query of 4 attributes = 6 |
| single-or | exist, count, of two relations or of two descriptions = 4 |
| same-relate | 4 attributes x (exist, count, query of 3 others; exist, count after a hop) = 28 |
| comparison | 4 attributes x (no or one hop on each side) = 16 |
| compare-integer | 3 functions x (no or one hop on each side) = 12 |
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

from data_builders.worlds.programs.scene_graph import ATTRIBUTES
from data_builders.worlds.programs.sentences import Texts, templates


@dataclass(frozen=True)
class Slot:
    """A step of a family: a function of the catalogue, or "filter" for one filter an attribute.

    `inputs` are numbers of steps, `parameter` the templates' field for what it states.
    """

    function: str
    inputs: tuple[int, ...] = ()
    parameter: str = ""


@dataclass(frozen=True)
class Family:
    """A program structure, inputs first, with its texts.

    `unstated` are attributes that a description may not state, by parameter: those that are asked
    for, compared or in common.
    """

    name: str
    structure: str
    steps: tuple[Slot, ...]
    texts: Texts
    unstated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def function(self) -> str:
        """The outermost function: the question type."""
        return self.steps[-1].function

    @cached_property
    def topology(self) -> str:
        """Either "tree" where a function takes two inputs, or "chain"."""
        return "tree" if any(len(slot.inputs) > 1 for slot in self.steps) else "chain"

    @cached_property
    def relation(self) -> str:
        """Kinds of relations: "spatial", "same-attribute", "both" or "none"."""
        spatial = any(slot.function == "relate" for slot in self.steps)
        same = any(slot.function.startswith("same_") for slot in self.steps)
        return {
            (True, True): "both",
            (True, False): "spatial",
            (False, True): "same-attribute",
        }.get((spatial, same), "none")


Steps = tuple[Slot, ...]


def _applied(function: str, *programs: Steps, parameter: str = "") -> Steps:
    """The programs one after the other, and a function of what they give."""
    steps: list[Slot] = []
    inputs: list[int] = []
    for program in programs:
        first = len(steps)
        for slot in program:
            moved = tuple(first + number for number in slot.inputs)
            steps.append(replace(slot, inputs=moved))
        inputs.append(len(steps) - 1)
    return (*steps, Slot(function, tuple(inputs), parameter))


def _described(parameter: str) -> Steps:
    """All objects of a description."""
    return _applied("filter", _applied("scene"), parameter=parameter)


def _near(references: str, relations: str, mark: str = "") -> Steps:
    """What has a relation to a reference: "BC", "rs" is r of the B that is s of the C."""
    program = _described(references[-1] + mark)
    for reference, relation in zip(references[-2::-1], relations[:0:-1], strict=True):
        program = _applied("relate", _applied("unique", program), parameter=relation + mark)
        program = _applied("filter", program, parameter=reference + mark)
    return _applied("relate", _applied("unique", program), parameter=relations[0] + mark)


def _hops(count: int, mark: str = "") -> Steps:
    """The set "A" of a phrase with so many relations in a chain."""
    if count == 0:
        return _described("A" + mark)
    near = _near("BCD"[:count], "rst"[:count], mark)
    return _applied("filter", near, parameter="A" + mark)


def _ended(program: Steps, function: str) -> Steps:
    """The whole program, with the function that reads the set."""
    if function.startswith("query_"):
        program = _applied("unique", program)
    return _applied(function, program)


_HOPS = ("zero_hop", "one_hop", "two_hop", "three_hop")
_ENDS = ("exist", "count", *(f"query_{attribute}" for attribute in ATTRIBUTES))
_SIDES = tuple(product((0, 1), (0, 1)))  # hops on each side of a comparison


def _unstated(function: str) -> dict[str, tuple[str, ...]]:
    kind, _, attribute = function.partition("_")
    return {"A": (attribute,)} if kind == "query" else {}


def _chains() -> Iterator[Family]:
    for count, structure in enumerate(_HOPS):
        for end in _ENDS:
            program, texts = _ended(_hops(count), end), templates(end, structure)
            yield Family(f"{structure}-{end}", structure, program, texts, _unstated(end))


def _logic() -> Iterator[Family]:
    for end in _ENDS:
        for structure, function in (("single_and", "intersect"), ("single_or", "union")):
            if structure == "single_or" and end.startswith("query"):
                continue
            both = _applied(function, _near("B", "r"), _near("C", "s"))
            program = _ended(_applied("filter", both, parameter="A"), end)
            texts = templates(end, structure)
            yield Family(f"{structure}-{end}", structure, program, texts, _unstated(end))
    for end in ("exist", "count"):
        program = _ended(_applied("union", _described("A"), _described("B")), end)
        yield Family(f"single_or-{end}-things", "single_or", program, templates(end, "either"))


def _same() -> Iterator[Family]:
    for attribute in ATTRIBUTES:
        others = [f"query_{other}" for other in ATTRIBUTES if other != attribute]
        rows = [(end, "") for end in ("exist", "count", *others)]
        rows += [(end, "-hop") for end in ("exist", "count")]
        for end, hop in rows:
            reference, phrase = _described("B"), "same_relate"
            if hop:
                reference = _applied("filter", _near("C", "r"), parameter="B")
                phrase = "same_relate_hop"
            same = _applied(f"same_{attribute}", _applied("unique", reference))
            program = _ended(_applied("filter", same, parameter="A"), end)
            texts = templates(end, phrase, attribute=attribute)
            unstated = {"A": (attribute, *_unstated(end).get("A", ())), "B": (attribute,)}
            name = f"same_relate-{attribute}-{end}{hop}"
            yield Family(name, "same_relate", program, texts, unstated)


def _comparisons() -> Iterator[Family]:
    for attribute in ATTRIBUTES:
        for first, second in _SIDES:
            sides = [_ended(_hops(first), f"query_{attribute}")]
            sides.append(_ended(_hops(second, "2"), f"query_{attribute}"))
            program = _applied(f"equal_{attribute}", *sides)
            texts = templates("equal", _HOPS[first], _HOPS[second], attribute)
            name = f"comparison-{attribute}-{first}-{second}"
            unstated = {"A": (attribute,), "A2": (attribute,)}
            yield Family(name, "comparison", program, texts, unstated)
    for function in ("equal_integer", "less_than", "greater_than"):
        for first, second in _SIDES:
            counts = _ended(_hops(first), "count"), _ended(_hops(second, "2"), "count")
            texts = templates(function, _HOPS[first], _HOPS[second])
            name = f"compare_integer-{function}-{first}-{second}"
            yield Family(name, "compare_integer", _applied(function, *counts), texts)


FAMILIES: tuple[Family, ...] = (*_chains(), *_logic(), *_same(), *_comparisons())
