"""Questions of many scenes: every family equally often, and of each its answers equally often.

In: scenes, a seed. Out: questions, scene by scene. Never: another result for the same arguments.

Each scene asks first the families with the fewest questions. A family is searched a few times in
the scene, the answer that is rarest in the family so far is kept, and it is rejected where it is
over-represented already: where it is more than 1.1 times as frequent as the second most frequent
answer, or more than five times as frequent as the median one. So answers come near a uniform
distribution in each family; large numbers stay rare where few scenes have them.
Source: Johnson et al. 2017, section 3 (question generation): rejection sampling within families.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from data_builders.worlds.programs.families import FAMILIES, Family
from data_builders.worlds.programs.question import Question, worded
from data_builders.worlds.programs.scene_graph import SceneGraph
from data_builders.worlds.programs.search import Instance, SceneSearch
from data_builders.worlds.programs.wording import Wording
from vlmtune.errors import UserError

ANY = Wording()
TRIES = 8  # searches of a family in a scene, and wordings of what is found
_BOOLEANS = (False, True)


class Generator:
    """Asks questions of scenes, one after the other; later questions balance earlier ones.

    Families whose statements the wording does not allow are not asked, nor those that ask for an
    attribute with one value. `answers` counts the questions by answer, of each family.
    """

    def __init__(
        self,
        words: Mapping[str, Sequence[str]],
        per_image: int = 10,
        seed: int = 0,
        wording: Wording = ANY,
    ) -> None:
        self.words, self.per_image = words, per_image
        self.seed, self.wording = seed, wording
        answered = filter(self._has_answers, FAMILIES)
        self.families = [family for family in answered if wording.rows(family.texts)]
        if not self.families:
            raise UserError(
                "expected a vocabulary with the words of a statement, such as 'there is a', got "
                "none: add words, or leave the vocabulary out"
            )
        self.answers: dict[str, Counter[Any]] = {family.name: Counter() for family in self.families}

    def questions(self, scenes: Iterable[SceneGraph]) -> Iterator[Question]:
        """Yields the questions of scenes."""
        for scene in scenes:
            yield from self._of(scene)

    def _of(self, scene: SceneGraph) -> Iterator[Question]:
        rng = random.Random(f"{self.seed}:{scene.split}:{scene.index}:{scene.image}")
        searched, count = SceneSearch(scene, self.words), 0
        turns = [(self.answers[f.name].total(), rng.random(), f) for f in self.families]
        for _, _, family in sorted(turns, key=lambda turn: turn[:2]):
            if count == self.per_image:
                return
            question = self._question(searched, family, rng)
            if question is not None:
                self.answers[family.name][question.instance.answer] += 1
                count += 1
                yield question

    def _question(
        self, searched: SceneSearch, family: Family, rng: random.Random
    ) -> Question | None:
        """A question of a family, None where no instance of some can be stated."""
        for _ in range(TRIES):
            instance = self._balanced(searched, family, rng)
            if instance is None:
                return None
            question = worded(instance, searched, rng, self.wording)
            if question is not None:
                return question
        return None

    def _balanced(
        self, searched: SceneSearch, family: Family, rng: random.Random
    ) -> Instance | None:
        """The instance with the rarest answer of some, None where that is too frequent."""
        counts = self.answers[family.name]
        domain = self._domain(family, counts)
        rarest = min((counts[answer] for answer in domain), default=0)
        chosen: Instance | None = None
        for _ in range(TRIES):
            instance = searched.search(family, rng)
            if instance is None:
                break
            if chosen is None or counts[instance.answer] < counts[chosen.answer]:
                chosen = instance
            if counts[chosen.answer] == rarest:
                break
        return chosen if chosen and not _too_frequent(chosen.answer, counts, domain) else None

    def _has_answers(self, family: Family) -> bool:
        """Whether a false answer exists: the attribute that is asked for has two values or more."""
        kind, _, attribute = family.function.partition("_")
        return kind != "query" or len(self.words[attribute]) > 1

    def _domain(self, family: Family, counts: Counter[Any]) -> Sequence[Any]:
        """The answers that a family may have; numbers up to one more than the largest so far."""
        kind, _, attribute = family.function.partition("_")
        if kind == "query":
            return self.words[attribute]
        return range(max(counts, default=0) + 2) if kind == "count" else _BOOLEANS


def _too_frequent(answer: Any, counts: Counter[Any], domain: Sequence[Any]) -> bool:
    """Whether an answer is over-represented in its family.

    Example:
        >>> _too_frequent(True, Counter({True: 7, False: 5}), (False, True))
        True
        >>> _too_frequent(False, Counter({True: 7, False: 5}), (False, True))
        False
    """
    ordered = sorted((counts[one] for one in domain), reverse=True)
    if len(ordered) < 2:
        return False
    second, median = ordered[1], max(ordered[len(ordered) // 2], 5)
    return counts[answer] > 1.1 * second + 1 or counts[answer] > 5 * median
