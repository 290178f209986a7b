"""Depth-first search of the parameters of a question.

In: a family and a scene. Out: a sound program. Never: an ill-posed program, a degenerate one, or a
search without end.

Rejected as soon as the steps so far show it (Johnson et al. 2017, section 3, question generation):

- ill-posed: a reference that fits no object or several;
- degenerate: a relation without which the description fits the same objects ("the cube right of
  the sphere" where there is one cube), or at most the reference itself; for a same-attribute
  relation also the same objects but the reference;
- degenerate, too: a branch of "and" or "or" without which the description fits the same objects;
- two references to one object ("the cube left of the ball right of the cube");
- comparisons of numbers where one description includes the other ("fewer red cubes than cubes"), or
  both sets are empty.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any, TypeVar

from data_builders.worlds.programs.families import Family, Slot
from data_builders.worlds.programs.program import CATALOGUE, Program, Step
from data_builders.worlds.programs.scene_graph import ATTRIBUTES, RELATIONS, Objects, SceneGraph
from data_builders.worlds.programs.wording import Description, refines

T = TypeVar("T")
VISITS = 2000  # largest number of steps that a search tries
_INTEGERS = ("equal_integer", "less_than", "greater_than")


@dataclass(frozen=True)
class Instance:
    """A family with the values of its parameters, and the answer on the scene."""

    family: Family
    descriptions: Mapping[str, Description]
    relations: Mapping[str, str]
    answer: Any

    @property
    def program(self) -> Program:
        """The program, with one filter for each attribute of a description."""
        steps: list[Step] = []
        last: list[int] = []  # of each step of the family, the number of its last step
        for slot in self.family.steps:
            inputs = tuple(last[i] for i in slot.inputs)
            if slot.function == "filter":
                for attribute, value in self.descriptions[slot.parameter]:
                    steps.append(Step(f"filter_{attribute}", inputs, value))
                    inputs = (len(steps) - 1,)
                last.append(inputs[0])
            else:
                value = self.relations[slot.parameter] if slot.parameter else ""
                steps.append(Step(slot.function, inputs, value))
                last.append(len(steps) - 1)
        return tuple(steps)


@dataclass
class SceneSearch:
    """Searches one scene, and remembers which descriptions fit which of its objects."""

    scene: SceneGraph
    words: Mapping[str, Sequence[str]]
    _fitting: dict[Objects, dict[Description, Objects]] = field(default_factory=dict)
    _options: dict[Any, list[list[tuple[Description, Objects]]]] = field(default_factory=dict)

    def search(self, family: Family, rng: random.Random) -> Instance | None:
        """Returns the first sound instance in a random order, None after `VISITS` steps."""
        return next(_Search(self, family, rng).instances(), None)

    def fitting(self, objects: Objects) -> dict[Description, Objects]:
        """All descriptions that fit some objects of a set, with those objects."""
        known = self._fitting.get(objects)
        if known is None:
            fits: dict[Description, set[int]] = {}
            for number in sorted(objects):
                stated = [(kind, self.scene.objects[number][kind]) for kind in ATTRIBUTES]
                for size in range(len(stated) + 1):
                    for description in combinations(stated, size):
                        fits.setdefault(description, set()).add(number)
            known = {description: frozenset(numbers) for description, numbers in fits.items()}
            self._fitting[objects] = known
        return known

    def options(
        self, objects: Objects, unstated: tuple[str, ...], single: bool
    ) -> list[list[tuple[Description, Objects]]]:
        """Descriptions and what they fit of a set, grouped by that object or by its size.

        `single` descriptions must fit one object; of others there are also those that fit none.
        """
        key = (objects, unstated, single)
        if key not in self._options:
            groups: dict[Any, list[tuple[Description, Objects]]] = {}
            every = [*self.fitting(objects).items()]
            if not single:
                every += [(description, frozenset[int]()) for description in self.empty(objects)]
            for description, fits in every:
                stated = {kind for kind, _ in description}
                if stated.isdisjoint(unstated) and (len(fits) == 1 or not single):
                    group = fits if single else len(fits)
                    groups.setdefault(group, []).append((description, fits))
            self._options[key] = list(groups.values())
        return self._options[key]

    def empty(self, objects: Objects) -> list[Description]:
        """Descriptions that fit none of the objects, and miss by the relation or by one word.

        Of all objects of the scene: those that change one word of a description that fits.
        """
        if objects == self.scene.all:
            return self._absent
        here = self.fitting(objects)
        return [one for one in self.fitting(self.scene.all) if one not in here]

    @cached_property
    def _absent(self) -> list[Description]:
        everything = self.fitting(self.scene.all)
        changed: dict[Description, None] = {}
        for description in everything:
            for i, (kind, _) in enumerate(description):
                for word in self.words[kind]:
                    changed[(*description[:i], (kind, word), *description[i + 1 :])] = None
        return [one for one in changed if one not in everything]


class _Search:
    """One search of one family."""

    def __init__(self, searched: SceneSearch, family: Family, rng: random.Random) -> None:
        self.searched, self.scene = searched, searched.scene
        self.family, self.rng = family, rng
        self.values: list[Any] = []
        self.descriptions: dict[str, Description] = {}
        self.relations: dict[str, str] = {}
        self.visits = 0
        readers = {i: slot.function for slot in family.steps for i in slot.inputs}
        self.readers = [readers.get(i, "") for i in range(len(family.steps))]

    def instances(self) -> Iterator[Instance]:
        """All sound instances, in a random order."""
        number = len(self.values)
        if number == len(self.family.steps):
            yield Instance(
                self.family, dict(self.descriptions), dict(self.relations), self.values[-1]
            )
            return
        # Depth first: `values` holds the branch that is tried, a value for each step before this.
        slot = self.family.steps[number]
        for value in self._options(number, slot):
            self.visits += 1
            if self.visits > VISITS:
                return
            self.values.append(value)
            yield from self.instances()
            self.values.pop()

    def _options(self, number: int, slot: Slot) -> Iterator[Any]:
        """The values that a step may have, in a random order; sets its parameter."""
        inputs = [self.values[i] for i in slot.inputs]
        if slot.function == "filter":
            for description, objects in self._described(number, slot, inputs[0]):
                self.descriptions[slot.parameter] = description
                yield objects
        elif slot.function == "relate":
            for relation in self.rng.sample(RELATIONS, len(RELATIONS)):
                self.relations[slot.parameter] = relation
                yield self.scene.related[relation][inputs[0]]
        elif self._sound(slot, inputs):
            yield CATALOGUE[slot.function].compute(self.scene, *inputs)

    def _sound(self, slot: Slot, inputs: Sequence[Any]) -> bool:
        if slot.function == "unique":
            # Only the steps so far have values.
            for other, value in zip(self.family.steps, self.values, strict=False):
                if other.function == "unique" and value in inputs[0]:
                    return False
            return True
        if slot.function in _INTEGERS:
            first, second = (self.descriptions[name] for name in ("A", "A2"))
            return any(inputs) and not (refines(first, second) or refines(second, first))
        described = all(self.family.steps[i].function == "filter" for i in slot.inputs)
        return slot.function != "union" or not described or self._both_needed(inputs)

    def _both_needed(self, inputs: Sequence[Any]) -> bool:
        """Whether neither of two sets, nor of two descriptions, holds the other."""
        first, second = (self.descriptions[name] for name in ("A", "B"))
        if refines(first, second) or refines(second, first):
            return False
        a, b = inputs
        return not (a | b) or not (a <= b or b <= a)

    def _described(
        self, number: int, slot: Slot, among: Objects
    ) -> Iterator[tuple[Description, Objects]]:
        """Descriptions with what they fit; each object or size of a set is equally likely first."""
        unstated = self.family.unstated.get(slot.parameter, ())
        single = self.readers[number] == "unique"
        options = self.searched.options(among, unstated, single)
        for group in self.rng.sample(options, len(options)):
            for description, objects in _shuffled(group, self.rng):
                if self._needs_relation(slot, description, objects):
                    yield description, objects
                    if single:
                        break  # what fails with a reference fails with each description of it

    def _needs_relation(self, slot: Slot, description: Description, objects: Objects) -> bool:
        """Whether the description fits other objects without the relation before it."""
        before = self.family.steps[slot.inputs[0]]
        if before.function == "scene":
            return True
        everywhere = self._fits(self.scene.all, description)
        if before.function not in ("intersect", "union"):
            reference = self.values[before.inputs[0]]
            if objects == everywhere or everywhere <= {reference}:
                return False
            # What is the same as a reference is never the reference itself.
            return before.function == "relate" or objects != everywhere - {reference}
        references = {self.values[self.family.steps[i].inputs[0]] for i in before.inputs}
        if objects == everywhere or everywhere <= references:
            return False
        alone = [self._fits(self.values[i], description) for i in before.inputs]
        return objects not in alone or (before.function == "union" and not objects)

    def _fits(self, objects: Objects, description: Description) -> Objects:
        return self.searched.fitting(objects).get(description, frozenset())


def _shuffled(items: Sequence[T], rng: random.Random) -> Iterator[T]:
    """The items in a random order, of which often only the first are needed."""
    left = list(items)
    while left:
        chosen = rng.randrange(len(left))
        left[chosen], left[-1] = left[-1], left[chosen]
        yield left.pop()
