"""Annotated images go in, pairs of images with their words exchanged come out.

In: scene annotations. Out: shards of 2 x 2 groups, and a benchmark file. Never: a pair whose
captions may both be true of one image.
"""

import functools
import itertools
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import PositiveInt
from typing_extensions import override

from data_builders.corpora.annotations import AnnotatedImage, AnnotatedObject, SceneReader
from data_builders.corpora.cola_images import AnnotatedBuilder
from data_builders.corpora.cola_queries import Excluded, ImageQueries
from data_builders.corpora.queries import Pair, Query, Words
from data_builders.shard_builder import Fraction, Record, ShardBuilder, images_group
from vlmtune.errors import UserError
from vlmtune.types import Group

BENCHMARK = "COLA_multiobjects_matching_benchmark.json"
_ATTEMPTS = 8  # partners that are tried for an image
Swap = tuple[str, str, str, str]  # object, its attribute, the other object, its attribute


@dataclass(frozen=True, slots=True)
class _Compound:
    """Two objects of an image by index, the relation between them, and the attributes to swap."""

    image: int
    first: int
    relation: str | None
    second: int
    words: tuple[str, str]


class ColaPairsBuilder(AnnotatedBuilder, ShardBuilder):
    r"""Two images whose compounds are exchanged a record, $I$ and $I'$ (Cola, section 3).

    $I$ has "red cube" and "blue sphere", $I'$ has "blue cube" and "red sphere": the objects differ,
    $o_1 \ne o_2$, and so do the attributes, $a_1 \ne a_2$. Each caption is true of its image, and
    false of the other by the annotations. Further attributes and the relations of the two captions
    may differ, as they do in Cola's file. People have not filtered the pairs, unlike Cola's.

    Images are divided at random: `benchmark` of them make pairs for the file
    `COLA_multiobjects_matching_benchmark.json` in the layout of Cola's,
    `[[image_1, caption_1, image_2, caption_2], ...]`, the rest make pairs for the shards. With 1
    no shards are written.

    Args:
        annotations: The reader of the scene annotations; its `multi` says which
            attributes a caption states.
        exclude: JSON file of compositions that no caption states, and of images to leave out, see
            `data_builders.corpora.cola_images`.
        measured: Files of benchmarks, or folders of them; the images they name are left out.
        form: "relation", as in Cola's file; "and" joins any two objects of an image.
        per_image: Maximum number of pairs that an image is in.
        benchmark: Fraction of the images for the benchmark file.
        seed: Seed of the division and of the partners.
    """

    def __init__(self, annotations: SceneReader, exclude: Path | None = None,
                 measured: Sequence[Path] = (), form: Literal["relation", "and"] = "relation",
                 per_image: PositiveInt = 2, benchmark: Fraction = 0.0,
                 seed: int = 0, records_per_shard: PositiveInt = 1000) -> None:  # fmt: skip
        super().__init__(records_per_shard)
        self.choose(annotations, measured, exclude)
        self.form, self.per_image = form, per_image
        self.benchmark, self.seed = benchmark, seed
        self._kept: tuple[list[AnnotatedImage], Excluded] | None = None

    @override
    def write(self, folder: Path, tick: Callable[[], None]) -> None:
        self._kept = None
        if self.benchmark < 1:
            super().write(folder, tick)
        if self.benchmark > 0:
            rows: list[list[str]] = []
            for group, files in self._pairs(benchmark=True):
                row: list[str] = []
                for file, text in zip(files, group.texts, strict=True):
                    row += [file.relative_to(self.annotations.folder).as_posix(), text]
                rows.append(row)
            if not rows:
                raise UserError(
                    "expected images with exchanged compounds for the benchmark, got none: raise "
                    "`benchmark`, or pass more images"
                )
            (folder / BENCHMARK).write_text(json.dumps(rows, indent=1) + "\n")

    @override
    def records(self) -> Iterator[Record]:
        yield from self._pairs(benchmark=False)

    def _pairs(self, benchmark: bool) -> Iterator[tuple[Group, list[Path]]]:
        if self._kept is None:  # both parts share what was read
            self._kept = self.kept()
        kept, excluded = self._kept
        images = []
        for image in kept:
            draw = random.Random(f"{self.seed}:division:{image.id}").random()
            if (draw < self.benchmark) == benchmark and self.exists(image.file):
                images.append(image)
        name = "benchmark" if benchmark else "training"
        rng = random.Random(f"{self.seed}:{name}")

        @functools.cache
        def of(k: int) -> ImageQueries:
            related = self.form == "relation"
            return ImageQueries(images[k], excluded, Words(()), self.annotations, rng, related)

        matches = list(self._matches(images, rng, of))
        rng.shuffle(matches)  # they come by compound
        stated: dict[int, set[str]] = defaultdict(set)  # by any record of the image
        for compound in itertools.chain.from_iterable(matches):
            stated[compound.image].add(self._pair(images, compound).text)
        for number, match in enumerate(matches):
            texts = tuple(self._pair(images, compound).text for compound in match)
            numbers = [compound.image for compound in match]
            both = [images[k] for k in numbers]
            self.counts[f"pairs: {name}"] += 1
            ids = [image.id for image in both]
            true = [of(k).true_texts() | stated[k] for k in numbers]
            group = images_group(f"{number:07d}", ids, texts, true, self.annotations.exhaustive)
            yield group, [image.file for image in both]

    def _matches(
        self, images: Sequence[AnnotatedImage], rng: random.Random,
        of: Callable[[int], ImageQueries],
    ) -> Iterator[tuple[_Compound, _Compound]]:  # fmt: skip
        """Yields the compounds of two images whose words are exchanged, each false of the other."""
        compounds: dict[Swap, list[_Compound]] = defaultdict(list)
        for k, image in enumerate(images):
            for swap, compound in self._compounds(k, image):
                compounds[swap].append(compound)
        # No image is in many pairs, and two images make one pair at most.
        uses: Counter[int] = Counter()
        paired: set[frozenset[int]] = set()
        # A swap and its exchange are one; sorted, so that the seed alone decides the order.
        swaps = sorted(swap for swap in compounds if swap < _exchanged(swap))
        rng.shuffle(swaps)
        for swap in swaps:
            partners = compounds.get(_exchanged(swap), [])
            for one in rng.sample(compounds[swap], len(compounds[swap])):
                for other in rng.sample(partners, min(_ATTEMPTS, len(partners))):
                    both = frozenset((one.image, other.image))
                    free = all(uses[k] < self.per_image for k in both) and both not in paired
                    if free and len(both) == 2 and self._valid(images, one, other, of):
                        uses.update(both)
                        paired.add(both)
                        yield one, other

    def _compounds(self, k: int, image: AnnotatedImage) -> Iterator[tuple[Swap, _Compound]]:
        """Yields every two objects of an image, by the attributes that another may exchange."""
        related: Sequence[tuple[int, str | None, int]] = image.relations
        if self.form == "and":
            indices = itertools.combinations(range(len(image.objects)), 2)
            related = [(i, None, j) for i, j in indices]
        for i, phrase, j in dict.fromkeys(related):
            a, b = image.objects[i], image.objects[j]
            if a.name == b.name:  # in 45 of the 210 pairs of Cola's file, though not in its paper
                continue
            for one, other in itertools.product(self._words(a), self._words(b)):
                if one != other:
                    sides = ((a.name, one), (b.name, other))
                    if a.name > b.name:  # whichever is the subject
                        sides = sides[::-1]
                    yield (*sides[0], *sides[1]), _Compound(k, i, phrase, j, (one, other))

    def _words(self, obj: AnnotatedObject) -> Sequence[str]:
        # In scenes each attribute has its kind, and captions state the kinds of `multi` alone.
        return obj.multi if self.annotations.exhaustive else sorted(obj.attributes)

    def _pair(self, images: Sequence[AnnotatedImage], compound: _Compound) -> Pair:
        objects = images[compound.image].objects
        sides = zip((compound.first, compound.second), compound.words, strict=True)
        first, second = (self._stated(objects[k], word) for k, word in sides)
        return Pair(first, second, compound.relation)

    def _stated(self, obj: AnnotatedObject, word: str) -> Query:
        """The query of an object that states `word`, with no more words than `multi` has."""
        stated = obj.multi if word in obj.multi else (word, *obj.multi[:-1])
        return Query(self.annotations.spelled(stated), obj.name)

    def _valid(
        self, images: Sequence[AnnotatedImage], one: _Compound, other: _Compound,
        of: Callable[[int], ImageQueries],
    ) -> bool:  # fmt: skip
        first, second = self._pair(images, one), self._pair(images, other)
        return (
            of(one.image).denied(second)
            and of(other.image).denied(first)
            and second.text not in of(one.image).true_texts()  # two queries can read alike
            and first.text not in of(other.image).true_texts()
        )


def _exchanged(swap: Swap) -> Swap:
    return (swap[0], swap[3], swap[2], swap[1])
