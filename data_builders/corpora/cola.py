"""Cola's training data (Ray et al. 2023) as shards.

In: annotated images. Out: queries of each image. Never: a hard negative that is true.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import NonNegativeInt, PositiveInt
from typing_extensions import override

from data_builders.corpora.annotations import SceneReader
from data_builders.corpora.cola_images import AnnotatedBuilder
from data_builders.corpora.cola_queries import ImageQueries
from data_builders.corpora.queries import Words
from data_builders.shard_builder import Record, ShardBuilder, image_group

# The training data of Cola's paper, by reader and kind of query (sections 5, 9 and 10).
PAPER = {
    ("GQAGraphs", "single"): "27,078 distinct queries, 450K pairs, 67K images, 6.7 an image",
    ("GQAGraphs", "multi"): "551,980 compounds, 71,174 images, 7.8 an image",
    ("ClevrScenes", "single"): "168 possible queries, 70K images",
    ("PacoObjects", "single"): "18,696 distinct queries, 55K pairs, 37,883 images, 1.5 an image",
}


class ColaBuilder(AnnotatedBuilder, ShardBuilder):
    """One image with true queries and their hard negatives a record (Cola, sections 3 and 5.3).

    Hard negatives bind the image's words wrongly: an attribute of one object stated of another
    ("misbound"), or the attributes of a two-object query swapped. Half-wrong queries
    have one word that is not in the image. The text of a query is its id.

    Args:
        annotations: The reader of the scene annotations.
        exclude: JSON file of compositions that no query states, and of images to leave out, see
            `data_builders.corpora.cola_images`. `build cola_split` writes such a file.
        measured: Files of benchmarks, or folders of them; the images they name are left out. See
            `data_builders.measured`.
        single: Maximum number of true single-object queries an image.
        misbound: Maximum number of misbound queries for each of them.
        half_wrong: Maximum number of half-wrong queries for each of them.
        multi: Maximum number of true two-object queries an image, false swaps first.
        form: "relation" as in Cola's files, "square white plate on top of brown wooden table", with
            a relation of the annotations; "and" joins two objects, "a red cube and a blue sphere".
        twins: Whether two-object queries have swapped negatives, under the same relation.
        reversals: Whether two-object queries come with their objects swapped where that is false,
            "brown wooden table on top of square white plate"; only with the form "relation".
        subsets: Whether single-object queries state any of an object's attributes, not only those
            that the reader's `single` names (CLEVR in Cola: 168 queries, section 9).
        sides: Maximum number of true queries of an object's side of the picture, "red cube on the
            left", each with its false opposite.
        sentences: Whether half of the queries with a relation or a side are sentences: "the red
            cube is behind the blue sphere" (ARO's wording), "a photo of a red cube on the left of
            the picture".
        multi_misbound: Maximum number of queries with a misbound object per two-object query.
        multi_half_wrong: Maximum number of queries with a half-wrong object per two-object query.
        seed: Seed of the sampled queries.
    """

    idle: ClassVar[Mapping[str, Any]] = {
        "measured": [], "twins": True, "form": "and", "reversals": False, "subsets": False,
        "sides": 0, "sentences": False,
    }  # fmt: skip

    def __init__(self, annotations: SceneReader, exclude: Path | None = None,
                 measured: Sequence[Path] = (), single: NonNegativeInt = 2,
                 misbound: NonNegativeInt = 1, half_wrong: NonNegativeInt = 1,
                 multi: NonNegativeInt = 2, twins: bool = True, multi_misbound: NonNegativeInt = 1,
                 multi_half_wrong: NonNegativeInt = 0, seed: int = 0,
                 records_per_shard: PositiveInt = 1000, form: Literal["relation", "and"] = "and",
                 reversals: bool = False, subsets: bool = False,
                 sides: NonNegativeInt = 0, sentences: bool = False) -> None:  # fmt: skip
        super().__init__(records_per_shard)
        self.choose(annotations, measured, exclude)
        self.single, self.misbound, self.half_wrong = single, misbound, half_wrong
        self.multi, self.twins, self.seed = multi, twins, seed
        self.multi_misbound, self.multi_half_wrong = multi_misbound, multi_half_wrong
        self.form, self.reversals, self.subsets, self.sides = form, reversals, subsets, sides
        self.sentences = sentences

    @override
    def paper(self) -> str | None:
        kind = "multi" if self.multi else "single"
        return PAPER.get((type(self.annotations).__name__, kind))

    @override
    def records(self) -> Iterator[Record]:
        images, excluded = self.kept()
        words = Words(images, self.subsets)
        distinct: set[str] = set()
        for image in images:
            if not self.exists(image.file):
                continue
            rng = random.Random(f"{self.seed}:{image.id}")
            queries = ImageQueries(
                image, excluded, words, self.annotations, rng, self.form == "relation",
                self.subsets, self.sentences,
            )  # fmt: skip
            true = queries.true_texts(self.sides > 0)
            # A negative that reads like a true query is true: a blue "light car" is a "blue light
            # car", as a blue and light "car" is.
            texts = {text: text in true for text in self._texts(queries)}
            stated = sum(texts.values())
            if not stated:
                self.counts["skipped: no query"] += 1
                continue
            distinct.update(text for text, yes in texts.items() if yes)
            self.counts["queries: true"] += stated
            self.counts["queries: false"] += len(texts) - stated
            exhaustive = self.annotations.exhaustive
            yield image_group(image.id, texts, true, exhaustive), [image.file]
        self.counts["queries: distinct"] = len(distinct)

    def _texts(self, queries: ImageQueries) -> Iterator[str]:
        """The queries of an image and their hard negatives; a text may come twice."""
        for query in queries.singles(self.single):
            negatives = [
                *queries.misbound(query, self.misbound),
                *queries.half_wrong(query, self.half_wrong),
            ]
            yield from (query.text, *(negative.text for negative in negatives))
        for side, opposite in queries.sides(self.sides):
            yield from (side.text, opposite.text)
        for pair, twin in queries.multis(self.multi):
            negatives = [
                twin if self.twins else None,
                queries.reversal(pair) if self.reversals else None,
                *queries.misbound_pairs(pair, self.multi_misbound),
                *queries.half_wrong_pairs(pair, self.multi_half_wrong),
            ]
            yield from (pair.text, *(n.text for n in negatives if n is not None))
