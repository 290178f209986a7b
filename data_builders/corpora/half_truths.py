"""Scene graphs go in, units with foils come out, of which half-truths are made.

In: scene annotations. Out: one JSON file for the benchmark half_truths. Never: an opened image, or
a foil that the annotations state.
"""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from pydantic import NonNegativeInt
from typing_extensions import override

from data_builders.corpora.annotations import AnnotatedImage, SceneReader
from data_builders.corpora.queries import Query
from data_builders.corpora.relations import Relations
from data_builders.corpora.vague import Vague, rephrased
from data_builders.phrases import with_article
from data_builders.shard_builder import Builder
from vlmtune.errors import UserError
from vlmtune.language.lexicon import groups, is_plural, relations

FILE = "units.json"
EXCLUSIVE = ("colour", "material")  # a big tree may be tall, and an old one; a round plate flat
OPPOSITES = {" ".join(phrase): " ".join(opposite) for phrase, opposite in relations()}
_ATTEMPTS = 20  # for a foil
Record = dict[str, Any]


class HalfTruthsBuilder(Builder):
    """Objects and relations of an image, each with foils (Kargi et al. 2026, Half-Truths).

    - An entity is an object with an attribute, "a red car". Its foils have another attribute of the
      same kind, "a blue car", or another name, "a red bus".
    - A relation, "a red car to the left of a tall tree", joins two such phrases that each mean one
      object. Its foils have the opposite relation, or an object that is absent.

    Foils are phrases of the corpus, drawn as often as it has them. No object of the image has the
    new word or a synonym of it, and the graph does not state the opposite relation of the two.
    Still, a graph is incomplete: an object, an attribute or a relation that it lacks may be in the
    image. Two words of a kind may hold at once ("teal" and "blue", "porcelain" and "ceramic").
    Nobody has looked at these foils, unlike at those of the released comparisons.

    Writes `units.json`. Images with fewer than two entities are left out.

    Args:
        annotations: The reader of the scene annotations.
        entities: Maximum number of entities of an image, at least 2.
        relations: Maximum number of relations of an image.
        seed: Seed of what is drawn.
    """

    def __init__(
        self,
        annotations: SceneReader,
        entities: Annotated[int, Ge(2)] = 3,
        relations: NonNegativeInt = 2,
        seed: int = 0,
    ) -> None:
        self.annotations = annotations
        self.entities = entities
        self.relations = relations
        self.seed = seed

    @override
    def write(self, folder: Path, tick: Callable[[], None]) -> None:
        images = list(self.annotations.images())
        phrases = CorpusPhrases(images)
        records = []
        for image in images:
            rng = random.Random(f"{self.seed}:{image.id}")
            units = ImageUnits(image, phrases, rng)
            foils_of = units.entities(self.entities)
            if len(foils_of) < 2:
                self.counts["skipped: fewer than two objects"] += 1
                continue
            stated = units.relations(self.relations)
            file = image.file.relative_to(self.annotations.folder).as_posix()
            record = {"image_path": file, "entities": list(foils_of)}
            records.append(record | {"negative_entities": foils_of, "relations": stated})
            self.counts["entities"] += len(foils_of)
            self.counts["relations"] += len(stated)
            tick()
        if not records:
            raise UserError(
                "expected images with two objects that have attributes, got none: choose others"
            )
        self.counts["images"] = len(records)
        (folder / FILE).write_text(json.dumps(records) + "\n")


class CorpusPhrases:
    """The phrases of a corpus: names of each attribute, and attributes of each name and kind.

    A word is listed as often as it occurs.
    """

    def __init__(self, images: Iterable[AnnotatedImage]) -> None:
        self.names: dict[str, list[str]] = defaultdict(list)
        self.attributes: dict[tuple[str, str], list[str]] = defaultdict(list)
        for image in images:
            for obj in image.objects:
                for word in sorted(obj.attributes):
                    self.names[word].append(obj.name)
                    self.attributes[obj.name, groups().get(word, "")].append(word)


class ImageUnits:
    """The entities and relations of one image; all random choices use `rng`."""

    def __init__(self, image: AnnotatedImage, phrases: CorpusPhrases, rng: random.Random) -> None:
        self.objects = image.objects
        self.phrases = phrases
        self.rng = rng
        self._known = Relations(image.relations, exhaustive=False)
        self._stated = self._known.annotated if image.clear is None else image.clear
        self._vague = Vague.of(image, exhaustive=False)
        words = set(image.bare)
        self._nouns = []
        for obj in image.objects:
            words |= {obj.name, *obj.attributes}
            attribute = rng.choice(sorted(obj.attributes))
            self._nouns.append(Query((attribute,), obj.name))
        self._present = rephrased(map(_last, words))  # a "school bus" is a bus

    def entities(self, count: int) -> dict[str, list[Record]]:
        """Returns phrases of objects, each with its foils."""
        nouns = list(dict.fromkeys(self._nouns))
        foils_of: dict[str, list[Record]] = {}
        for noun in self.rng.sample(nouns, len(nouns)):
            other_nouns = (self._with_attribute(noun), self._with_name(noun))
            foils = [{"negative": phrase(other)} for other in other_nouns if other]
            if foils and len(foils_of) < count:
                foils_of[phrase(noun)] = foils
        return foils_of

    def relations(self, count: int) -> list[Record]:
        """Returns relations of two objects, each with its foils."""
        listed: list[Record] = []
        for i, relation, j in self.rng.sample(self._stated, len(self._stated)):
            first, second = self._nouns[i], self._nouns[j]
            if len(listed) == count or not (self._is_sole(first) and self._is_sole(second)):
                continue
            foils = []
            if opposite := self._opposite(i, relation, j):
                foils.append(_related(first, opposite, second))
            if other := self._with_name(second):
                foils.append(_related(first, relation, other))
            if foils:
                listed.append(_related(first, relation, second) | {"negatives": foils})
        return listed

    def _opposite(self, subject: int, relation: str, other: int) -> str | None:
        """The opposite of a relation, unless the graph states it or what means the same."""
        opposite = OPPOSITES.get(relation)
        for i, stated, j in self._known.true:
            means_opposite = stated == opposite or OPPOSITES.get(stated) == relation
            if (i, j) == (subject, other) and means_opposite:
                return None
        return opposite

    def _is_sole(self, noun: Query) -> bool:
        """Whether a phrase means one object alone."""
        times = sum(map(noun.true_of, self.objects))
        return times == 1 and not self._vague.may_mean(noun)

    def _with_attribute(self, noun: Query) -> Query | None:
        """The noun with another attribute of the same kind."""
        kind = groups().get(noun.attributes[0], "")
        if kind not in EXCLUSIVE:
            return None
        for word in self._absent(self.phrases.attributes[noun.name, kind]):
            other = Query((word,), noun.name)
            if not self._vague.may_mean(other):
                return other
        return None

    def _with_name(self, noun: Query) -> Query | None:
        """The noun with another name of the same number."""
        for name in self._absent(self.phrases.names[noun.attributes[0]]):
            if is_plural(_last(name)) == is_plural(_last(noun.name)):
                return Query(noun.attributes, name)
        return None

    def _absent(self, words: Sequence[str]) -> Iterator[str]:
        """Draws words that are true of no object."""
        for _ in range(_ATTEMPTS):
            word = self.rng.choice(words)
            if _last(word) not in self._present:
                yield word


def phrase(noun: Query) -> str:
    """Returns a noun with its article, unless it is a plural.

    Example:
        >>> phrase(Query(("orange",), "bus")), phrase(Query(("tall",), "palm trees"))
        ('an orange bus', 'tall palm trees')
    """
    return noun.text if is_plural(_last(noun.name)) else with_article(noun.text)


def _last(words: str) -> str:
    return words.split()[-1]


def _related(first: Query, relation: str, second: Query) -> Record:
    return {"subject": phrase(first), "relation_type": relation, "object": phrase(second)}
