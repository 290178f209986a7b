"""ARO's COCO-Order (Yuksekgonul et al. 2023, section 2).

In: rendered scenes. Out: captions and their shuffles.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from data_builders.phrases import ATTRIBUTE_ORDER
from data_builders.worlds.scenes.formats.context import SceneContext, SuiteScenes
from data_builders.worlds.scenes.scene import COLORS, MATERIALS, SHAPES, SIZES, TEXTURES
from data_builders.worlds.scenes.statements import Noun, Statement, clear_relations, stated_kinds

_ATTEMPTS = 60  # for one shuffle, before the caption is left out
_KIND: dict[str, str] = {}
for _kind, _words in zip(ATTRIBUTE_ORDER, (SIZES, TEXTURES, COLORS, MATERIALS), strict=True):
    _KIND |= dict.fromkeys(_words, _kind)


def files(scenes: SuiteScenes) -> tuple[str, str]:
    """Returns the texts of `coco_karpathy_test.json` and of the file with its shuffles.

    In ARO's order the shuffles move nouns and adjectives, all other words, the words within each
    trigram, and the trigrams. A shuffle that is still a sentence is false of the image.
    """
    rows = scenes.rows("aro order", _row)
    captions = json.dumps([{"image": image.file, "caption": [text]} for image, (text, _) in rows])
    shuffles = [texts for _, (_, texts) in rows]
    compact = json.dumps(shuffles, ensure_ascii=False, separators=(",", ":"))
    content: dict[str, Any] = {
        "version": 1,
        "annotations": hashlib.sha256(captions.encode()).hexdigest(),
        "tagger": "scene grammar",
        "seed": scenes.seed,
        "sha256": hashlib.sha256(compact.encode()).hexdigest(),
        "shuffles": shuffles,
    }
    return captions, json.dumps(content)


def _row(context: SceneContext) -> tuple[str, list[str]] | None:
    caption = _caption(context)
    if caption is None:
        return None
    shuffles = _shuffles(caption, context)
    return None if shuffles is None else (str(caption), shuffles)


def _caption(context: SceneContext) -> Statement | None:
    edges, rng = clear_relations(context.scene), context.rng
    if not edges:
        return None
    i, name, j = rng.choice(edges)

    def noun(k: int) -> Noun:
        obj = context.scene.objects[k]
        kinds = ["color"]
        for kind in stated_kinds(obj, context.kinds):
            if kind != "color" and rng.random() < 0.35:
                kinds.append(kind)
        return Noun.of(obj, kinds)

    # Each draw follows the draws of the words before it, so the order of the lines counts.
    first = noun(i)
    relation = None if rng.random() < 0.4 else name
    second = noun(j)
    return Statement((first, second), relation)


def _shuffles(caption: Statement, context: SceneContext) -> list[str] | None:
    words, rng = str(caption).split(), context.rng
    nouns = [k for k, word in enumerate(words) if word in SHAPES]
    adjectives = [k for k, word in enumerate(words) if word in _KIND]
    others = [k for k in range(len(words)) if k not in {*nouns, *adjectives}]
    trigrams = [words[k : k + 3] for k in range(0, len(words), 3)]

    def among(source: Sequence[str], positions: Sequence[int]) -> list[str]:
        order, shuffled = context.shuffled(positions), list(source)
        for position, other in zip(positions, order, strict=True):
            shuffled[position] = source[other]
        return shuffled

    def within_trigrams() -> list[str]:
        return list(chain(*(rng.sample(trigram, len(trigram)) for trigram in trigrams)))

    shufflers: tuple[Callable[[], list[str]], ...] = (
        lambda: among(among(words, nouns), adjectives),
        lambda: among(words, others),
        within_trigrams,
        lambda: list(chain(*context.shuffled(trigrams))),
    )
    texts: list[str] = []
    for shuffle in shufflers:
        for _ in range(_ATTEMPTS):
            shuffled = shuffle()
            is_sentence = _skeleton(shuffled) == _skeleton(words)
            if not is_sentence or _reworded(caption, shuffled).holds(context.scene) is False:
                texts.append(" ".join(shuffled))
                break
        else:
            return None
    return texts


def _reworded(caption: Statement, words: Sequence[str]) -> Statement:
    """The same caption with the shapes and attributes of `words`, in their order."""
    nouns: list[Noun] = []
    attributes: list[tuple[str, str]] = []
    for word in words:
        if word in SHAPES:
            nouns.append(Noun(word, tuple(attributes)))
            attributes = []
        elif word in _KIND:
            attributes.append((_KIND[word], word))
    return replace(caption, nouns=tuple(nouns))


def _skeleton(words: Sequence[str]) -> list[str]:
    """The words with each noun and its attributes as one; equal skeletons have the same grammar."""
    skeleton: list[str] = []
    for word in words:
        while word in SHAPES and skeleton and skeleton[-1] in _KIND:
            skeleton.pop()
        part = "noun" if word in SHAPES else word
        skeleton.append(part)
    return skeleton
