"""Captions that are as complete, dense and biased as asked.

In: annotated images. Out: images with descriptions. Never: an attribute of an object that lacks it,
or an excluded composition.

Natural captions name few objects, the salient ones, and few of their attributes. This builder sets
each of these apart, to see which of them keeps a model from binding attributes to objects.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from annotated_types import Gt, Le
from pydantic import PositiveInt
from typing_extensions import override

from data_builders.corpora.annotations import AnnotatedObject, SceneReader
from data_builders.corpora.cola_images import AnnotatedBuilder
from data_builders.corpora.cola_queries import Excluded
from data_builders.corpora.queries import Query, holds
from data_builders.corpora.vague import Vague
from data_builders.phrases import with_article
from data_builders.shard_builder import Fraction, Record, ShardBuilder, image_group
from vlmtune.errors import UserError


class DescriptionsBuilder(AnnotatedBuilder, ShardBuilder):
    """One image with descriptions such as "a red cube, a sphere and a blue cone" a record.

    Source: the three properties of data that "CLIP Won't Learn Object-Attribute Binding from
    Natural Data and Here is Why" (arXiv 2507.07985) finds to decide.

    Args:
        annotations: The reader of the scene annotations; it says which attributes a
            two-object query states (`multi`), and these are the ones described.
        exclude: JSON file of compositions that no description states, see
            `data_builders.corpora.cola_images`. Such an object is named without its attributes.
        measured: Files of benchmarks, or folders of them; the images they name are left out.
        captions: Number of descriptions of an image, drawn independently; equal ones count once.
        density: Probability that a named object comes with its attributes.
        completeness: Fraction of an image's objects that a description names, at least one object.
        salient: Whether it names the nearest objects, those lowest in the picture; else random
            ones.
        twins: Whether a description has a swapped negative as its hard negative: two objects swap
            their attributes, where that is false.
        seed: Seed of the descriptions.
    """

    def __init__(self, annotations: SceneReader, exclude: Path | None = None,
                 measured: Sequence[Path] = (), captions: PositiveInt = 5, density: Fraction = 1.0,
                 completeness: Annotated[float, Gt(0), Le(1)] = 1.0, salient: bool = False,
                 twins: bool = False, seed: int = 0,
                 records_per_shard: PositiveInt = 1000) -> None:  # fmt: skip
        super().__init__(records_per_shard)
        self.choose(annotations, measured, exclude)
        self.captions, self.density, self.completeness = captions, density, completeness
        self.salient, self.twins, self.seed = salient, twins, seed

    @override
    def records(self) -> Iterator[Record]:
        images, excluded = self.kept()
        for image in images:
            if not self.exists(image.file):
                continue
            if not image.objects:
                self.counts["skipped: no object"] += 1
                continue
            rng = random.Random(f"{self.seed}:{image.id}")
            vague = Vague.of(image, self.annotations.exhaustive)
            texts: dict[str, bool] = {}
            for _ in range(self.captions):
                named = self._named(image.objects, rng)
                nouns = [self._noun(obj, excluded, rng) for obj in named]
                texts[described(nouns)] = True
                if self.twins and (twin := exchanged(nouns, image.objects, vague, excluded)):
                    texts.setdefault(described(twin), False)
            self.counts["descriptions"] += sum(texts.values())
            self.counts["hard negatives"] += len(texts) - sum(texts.values())
            yield image_group(image.id, texts), [image.file]

    def _named(
        self, objects: Sequence[AnnotatedObject], rng: random.Random
    ) -> Sequence[AnnotatedObject]:
        """The objects that a description names, in random order."""
        count = max(1, round(self.completeness * len(objects)))
        if not self.salient:
            return rng.sample(objects, count)
        if any(obj.center is None for obj in objects):
            raise UserError(
                f"expected positions of objects in {self.annotations.path}, as `salient` asks for "
                "the lowest in the picture, got none: leave salient out"
            )
        nearest = sorted(objects, key=lambda obj: -obj.center[1] if obj.center else 0.0)[:count]
        return rng.sample(nearest, count)

    def _noun(self, obj: AnnotatedObject, excluded: Excluded, rng: random.Random) -> Query:
        # Drawn whether or not it is used, so that other exclusions leave the other nouns alone.
        dense = rng.random() < self.density
        forbidden = any(words <= obj.attributes for words in excluded.get(obj.name, ()))
        attributes = obj.multi if dense and not forbidden else ()
        return Query(attributes, obj.name)


def described(nouns: Sequence[Query]) -> str:
    """Returns a description that names each noun.

    Example:
        >>> described([Query(("red",), "cube"), Query((), "sphere"), Query(("blue",), "cone")])
        'a red cube, a sphere and a blue cone'
    """
    *rest, last = [with_article(noun.text) for noun in nouns]
    return f"{', '.join(rest)} and {last}" if rest else last


def exchanged(
    nouns: Sequence[Query], objects: Sequence[AnnotatedObject], vague: Vague, excluded: Excluded
) -> list[Query] | None:
    """Returns the nouns with the attributes of two exchanged, so that one noun is false.

    The first two nouns for which this is so and that then state no excluded composition; None if
    there are none. What `vague` may mean is not false.
    """

    def may_hold(noun: Query) -> bool:
        return holds(noun, objects) or vague.may_mean(noun)

    for i, first in enumerate(nouns):
        for j, second in enumerate(nouns[:i]):
            pair = Query(second.attributes, first.name), Query(first.attributes, second.name)
            is_excluded = any(_states(noun, excluded) for noun in pair)
            if not is_excluded and not all(map(may_hold, pair)):
                twin = list(nouns)
                twin[i], twin[j] = pair
                return twin
    return None


def _states(noun: Query, excluded: Excluded) -> bool:
    """Whether a noun states an excluded composition."""
    return any(words.issubset(noun.attributes) for words in excluded.get(noun.name, ()))
