"""ARO's COCO-Order (Yuksekgonul et al. 2023, section 2): captions, and four shuffles of each."""

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_builders.scenes.captions import ATTRIBUTE_ORDER
from data_builders.scenes.drawing import Drawn
from data_builders.scenes.grammar import COLORS, MATERIALS, SHAPES, SIZES, TEXTURES, Scene
from data_builders.scenes.statements import (
    Noun,
    article,
    edges,
    noun,
    related,
    sayable,
    there,
    worded,
)

_DRAWS = 60  # of one shuffle, before the caption is left out
_KIND = {
    word: kind
    for kind, words in zip(ATTRIBUTE_ORDER, (SIZES, TEXTURES, COLORS, MATERIALS), strict=True)
    for word in words
}


@dataclass(frozen=True)
class _Caption:
    """Two nouns, with a relation between them or "and"."""

    first: Noun
    relation: str | None
    second: Noun

    def words(self) -> list[str]:
        if self.relation is None:
            return f"{article(self.first)} and {article(self.second)}".split()
        return worded(self.first, self.relation, self.second).split()

    def holds(self, scene: Scene) -> bool | None:
        if self.relation is None:
            return there(scene, self.first, self.second)
        return related(scene, self.first, self.relation, self.second)

    def reworded(self, words: Sequence[str]) -> "_Caption":
        """The same caption with the shapes and attributes of `words`, in their order."""
        nouns: list[Noun] = []
        said: list[tuple[str, str]] = []
        for word in words:
            if word in SHAPES:
                nouns.append(Noun(word, tuple(said)))
                said = []
            elif word in _KIND:
                said.append((_KIND[word], word))
        return _Caption(nouns[0], self.relation, nouns[1])


def captions(
    drawn: Sequence[Drawn], kinds: Mapping[str, Sequence[str]], seed: int
) -> Iterator[tuple[str, str, list[str]]]:
    """Yields image, caption and its four shuffles, one of each scene that allows one.

    In ARO's order: shapes among themselves and attributes among themselves; all other words; the
    words within each of the consecutive trigrams; the trigrams. No shuffle gives the caption back,
    and where one is a sentence still, as the first always is, it is false of the image.
    """
    for d in drawn:
        rng = random.Random(f"{seed}:aro order:{d.file}")
        caption = _caption(d.scene, kinds, rng)
        shuffles = _shuffles(caption, d.scene, rng) if caption else None
        if caption and shuffles:
            yield d.file, " ".join(caption.words()), shuffles


def files(items: Sequence[tuple[str, str, list[str]]], seed: int) -> tuple[str, str]:
    """Returns the contents of `coco_karpathy_test.json` and of the file with its shuffles."""
    listed = json.dumps([{"image": image, "caption": [text]} for image, text, _ in items])
    shuffles = [texts for _, _, texts in items]
    compact = json.dumps(shuffles, ensure_ascii=False, separators=(",", ":"))
    content: dict[str, Any] = {
        "version": 1,
        "annotations": hashlib.sha256(listed.encode()).hexdigest(),
        "tagger": "scene grammar",
        "seed": seed,
        "sha256": hashlib.sha256(compact.encode()).hexdigest(),
        "shuffles": shuffles,
    }
    return listed, json.dumps(content)


def _caption(
    scene: Scene, kinds: Mapping[str, Sequence[str]], rng: random.Random
) -> _Caption | None:
    stated = edges(scene, range(len(scene.objects)))
    if not stated:
        return None
    i, name, j = rng.choice(stated)

    def said(k: int) -> Noun:
        thing = scene.objects[k]
        more = [x for x in sayable(thing, kinds) if x != "color" and rng.random() < 0.35]
        return noun(thing, ["color", *more])

    return _Caption(said(i), None if rng.random() < 0.4 else name, said(j))


def _shuffles(caption: _Caption, scene: Scene, rng: random.Random) -> list[str] | None:
    words = caption.words()
    nouns = [k for k, word in enumerate(words) if word in SHAPES]
    adjectives = [k for k, word in enumerate(words) if word in _KIND]
    others = [k for k in range(len(words)) if k not in {*nouns, *adjectives}]
    trigrams = [words[k : k + 3] for k in range(0, len(words), 3)]

    def among(split: Sequence[str], places: Sequence[int]) -> list[str]:
        order, shuffled = rng.sample(places, len(places)), list(split)
        for place, other in zip(places, order, strict=True):
            shuffled[place] = split[other]
        return shuffled

    makers: tuple[Callable[[], list[str]], ...] = (
        lambda: among(among(words, nouns), adjectives),
        lambda: among(words, others),
        lambda: [w for part in trigrams for w in rng.sample(part, len(part))],
        lambda: [w for part in rng.sample(trigrams, len(trigrams)) for w in part],
    )
    found: list[str] = []
    for make in makers:
        for _ in range(_DRAWS):
            shuffled = make()
            is_sentence = _skeleton(shuffled) == _skeleton(words)
            if not is_sentence or caption.reworded(shuffled).holds(scene) is False:
                found.append(" ".join(shuffled))
                break
    return found if len(found) == len(makers) else None


def _skeleton(words: Sequence[str]) -> list[str]:
    """The words with each noun, attributes and all, as one: equal ones are alike sentences."""
    kept: list[str] = []
    for word in words:
        while word in SHAPES and kept and kept[-1] in _KIND:
            kept.pop()
        kept.append("noun" if word in SHAPES else word)
    return kept
