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

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

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


class _Steps:
    """Steps under construction; each method returns the number of its last step."""

    def __init__(self) -> None:
        self.steps: list[Slot] = []

    def add(self, function: str, *inputs: int, parameter: str = "") -> int:
        self.steps.append(Slot(function, inputs, parameter))
        return len(self.steps) - 1

    def described(self, parameter: str) -> int:
        """All objects of a description."""
        return self.add("filter", self.add("scene"), parameter=parameter)

    def near(self, references: str, relations: str, mark: str = "") -> int:
        """What has a relation to a reference: "BC", "rs" is r of the B that is s of the C."""
        number = self.described(references[-1] + mark)
        for reference, relation in zip(references[-2::-1], relations[:0:-1], strict=True):
            number = self.add("unique", number)
            number = self.add("relate", number, parameter=relation + mark)
            number = self.add("filter", number, parameter=reference + mark)
        number = self.add("unique", number)
        return self.add("relate", number, parameter=relations[0] + mark)

    def hops(self, count: int, mark: str = "") -> int:
        """The set "A" of a phrase with so many relations in a chain."""
        if count == 0:
            return self.described("A" + mark)
        number = self.near("BCD"[:count], "rst"[:count], mark)
        return self.add("filter", number, parameter="A" + mark)

    def finished(self, number: int, function: str) -> tuple[Slot, ...]:
        """The whole program, with the function that reads the set."""
        if function.startswith("query_"):
            number = self.add("unique", number)
        self.add(function, number)
        return tuple(self.steps)


_HOPS = ("zero_hop", "one_hop", "two_hop", "three_hop")
_ENDS = ("exist", "count", *(f"query_{attribute}" for attribute in ATTRIBUTES))


def _unstated(function: str) -> dict[str, tuple[str, ...]]:
    kind, _, attribute = function.partition("_")
    return {"A": (attribute,)} if kind == "query" else {}


def _chains() -> list[Family]:
    out = []
    for count, structure in enumerate(_HOPS):
        for end in _ENDS:
            steps = _Steps()
            program = steps.finished(steps.hops(count), end)
            texts = templates(end, structure)
            out.append(Family(f"{structure}-{end}", structure, program, texts, _unstated(end)))
    return out


def _logic() -> list[Family]:
    out = []
    for end in _ENDS:
        for structure, function in (("single_and", "intersect"), ("single_or", "union")):
            if structure == "single_or" and end.startswith("query"):
                continue
            steps = _Steps()
            both = steps.near("B", "r"), steps.near("C", "s")
            number = steps.add("filter", steps.add(function, *both), parameter="A")
            program, texts = steps.finished(number, end), templates(end, structure)
            name = f"{structure}-{end}"
            out.append(Family(name, structure, program, texts, _unstated(end)))
    for end in ("exist", "count"):
        steps = _Steps()
        number = steps.add("union", steps.described("A"), steps.described("B"))
        program, texts = steps.finished(number, end), templates(end, "either")
        out.append(Family(f"single_or-{end}-things", "single_or", program, texts))
    return out


def _same() -> list[Family]:
    out = []
    for attribute in ATTRIBUTES:
        others = [f"query_{other}" for other in ATTRIBUTES if other != attribute]
        rows = [(end, "same_relate") for end in ("exist", "count", *others)]
        rows += [(end, "same_relate_hop") for end in ("exist", "count")]
        for end, phrase in rows:
            steps, hop = _Steps(), phrase == "same_relate_hop"
            if hop:
                number = steps.add("filter", steps.near("C", "r"), parameter="B")
            else:
                number = steps.described("B")
            number = steps.add(f"same_{attribute}", steps.add("unique", number))
            number = steps.add("filter", number, parameter="A")
            program = steps.finished(number, end)
            texts = templates(end, phrase, attribute=attribute)
            unstated = {"A": (attribute, *_unstated(end).get("A", ())), "B": (attribute,)}
            name = f"same_relate-{attribute}-{end}" + ("-hop" if hop else "")
            out.append(Family(name, "same_relate", program, texts, unstated))
    return out


def _comparisons() -> list[Family]:
    out = []
    hops = [(a, b) for a in (0, 1) for b in (0, 1)]
    for attribute in ATTRIBUTES:
        for first, second in hops:
            steps = _Steps()
            sides = []
            for count, mark in ((first, ""), (second, "2")):
                number = steps.add("unique", steps.hops(count, mark))
                sides.append(steps.add(f"query_{attribute}", number))
            steps.add(f"equal_{attribute}", *sides)
            texts = templates("equal", _HOPS[first], _HOPS[second], attribute)
            name = f"comparison-{attribute}-{first}-{second}"
            unstated = {"A": (attribute,), "A2": (attribute,)}
            out.append(Family(name, "comparison", tuple(steps.steps), texts, unstated))
    for function in ("equal_integer", "less_than", "greater_than"):
        for first, second in hops:
            steps = _Steps()
            one = steps.add("count", steps.hops(first))
            other = steps.add("count", steps.hops(second, "2"))
            steps.add(function, one, other)
            texts = templates(function, _HOPS[first], _HOPS[second])
            name = f"compare_integer-{function}-{first}-{second}"
            out.append(Family(name, "compare_integer", tuple(steps.steps), texts))
    return out


FAMILIES: tuple[Family, ...] = (*_chains(), *_logic(), *_same(), *_comparisons())
