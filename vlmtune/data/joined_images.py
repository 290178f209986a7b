"""Joins the images of a training batch in pairs, with captions of both (`data.joined` of a fit).

In: groups with decoded images. Out: groups of one image each, joined or as it was, and its texts.
Never: two images that a joined text does not name.
"""

import random
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from PIL import Image
from pydantic import PositiveInt
from typing_extensions import override

from vlmtune.data.caption_draw import draw_captions
from vlmtune.data.group_changes import StepChanges
from vlmtune.data.hard_negatives import with_hard_negatives
from vlmtune.language.canonical import canonical_parts
from vlmtune.language.lexicon import word_set
from vlmtune.language.phrases import compatible
from vlmtune.language.tagger import LexiconTagger, Tagger, tagged_sentence
from vlmtune.language.vocabulary import kind
from vlmtune.language.words import Sentence
from vlmtune.types import Group

EXCHANGED = ("NOUN", "PROPN", "PRON", "VERB", "ADJ", "ADV", "ADP", "NUM")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


class JoinedImages(StepChanges):
    """CLIC's data: in every other step two images are joined to one, with captions of both.

    Two images a and b become one square image, each squashed to half of it: above each other if a
    is wide, side by side if it is high, in random order. Pairs have one shape where the batch
    allows it. The true captions of each image are cut into sentences, of which the first is that of
    a caption at random. The texts of a pair are

    - the first sentence of a and that of b, and the same two in the other order;
    - twice another sentence of each, in random order, as far as there are any;
    - a hard negative: the first text with a word of a and one of b exchanged that have the same
      part of speech and form and another meaning, each in one of the sentences only. Without such
      words there is none.

    Only the first two and the hard negative count as texts of the image's own group, so that `CLIC`
    knows which two differ by their order. A batch of 2 B records gives B joined images; an odd one
    is left out. The other steps have each image by itself with one of its captions. A record of
    several images takes one of them. All is a function of seed, epoch and batch.

    Source: CLIC (NeurIPS 2025, arXiv 2505.24424), section 3, and its released code
    (github.com/AmitPeleg/CLIC, commit dc845c7). There the second image comes from the whole corpus,
    so that a batch of B records has B joined images; here both come from the batch.

    Args:
        size: Height and width of a joined image, in pixels, before preprocessing.
        tagger: Tags parts of speech; None uses the `LexiconTagger`.
    """

    def __init__(self, size: PositiveInt = 224, tagger: Tagger | None = None) -> None:
        self.size = size
        self.tagger: Tagger = LexiconTagger() if tagger is None else tagger

    @override
    def changed(self, groups: Sequence[Group], seed: int, epoch: int, step: int) -> list[Group]:
        single = with_hard_negatives(groups, "none", seed, epoch)
        captioned = [group for group in single if group.texts]
        if step % 2 or len(captioned) < 2:
            return draw_captions(single, 1, seed, epoch)
        rng = random.Random(f"{seed}/{epoch}/{step}/{captioned[0].key}")
        rng.shuffle(captioned)
        # Neighbours have one shape, except for one pair at most.
        captioned.sort(key=lambda group: _is_wide(_image_of(group)))
        pairs = zip(captioned[::2], captioned[1::2], strict=False)
        return [self._joined(first, second, rng) for first, second in pairs]

    def _joined(self, first: Group, second: Group, rng: random.Random) -> Group:
        a, *others_of_a = _sentences(first.texts, rng)
        b, *others_of_b = _sentences(second.texts, rng)
        ordered = [f"{a} {b}", f"{b} {a}"]
        further = []
        for parts in list(zip(others_of_a, others_of_b, strict=False))[:2]:
            further.append(" ".join(rng.sample(parts, 2)))
        true = list(dict.fromkeys(ordered + further))
        false = []
        negative = self._exchanged(a, b, rng)
        if canonical_parts(negative) not in map(canonical_parts, true):
            false.append(negative)
        texts = (*true, *false)
        is_true = [[text in true for text in texts]]
        in_group = [[text in ordered or text in false for text in texts]]
        return Group(
            key=f"{first.key}+{second.key}",
            image_ids=(f"{first.image_ids[0]}+{second.image_ids[0]}",),
            text_ids=texts,
            texts=texts,
            truth=torch.tensor(is_true),
            true_ids=(frozenset(true),),
            images=(self._image(_image_of(first), _image_of(second), rng),),
            same_group=torch.tensor(in_group),
        )

    def _exchanged(self, a: str, b: str, rng: random.Random) -> str:
        first = tagged_sentence(a, self.tagger)
        second = tagged_sentence(b, self.tagger)
        pairs = []
        for i in _only_in(first, second):
            word = first.words[i]
            tag = first.tags[i]
            for j in _only_in(second, first):
                if second.tags[j] == tag and _may_exchange(word, second.words[j], tag):
                    pairs.append((i, j))
        if not pairs:
            return f"{a} {b}"
        i, j = rng.choice(pairs)
        from_first = first.inner(first.words[i])
        from_second = second.inner(second.words[j])
        left = first.edited({(i, i + 1): [from_second]})
        right = second.edited({(j, j + 1): [from_first]})
        return f"{left} {right}"

    def _image(self, first: Image.Image, second: Image.Image, rng: random.Random) -> Image.Image:
        half = self.size // 2
        if _is_wide(first):  # one above the other
            shape = (self.size, half)
            corner = (0, half)
        else:
            shape = (half, self.size)
            corner = (half, 0)
        joined = Image.new("RGB", (2 * half, 2 * half))
        one, other = rng.sample((first, second), 2)
        joined.paste(one.resize(shape, Image.Resampling.BICUBIC), (0, 0))
        joined.paste(other.resize(shape, Image.Resampling.BICUBIC), corner)
        return joined


def _image_of(group: Group) -> Any:
    assert group.images is not None, "images, as their features are not stored"
    return group.images[0]


def _is_wide(image: Image.Image) -> bool:
    return image.width >= image.height


def _sentences(captions: Sequence[str], rng: random.Random) -> list[str]:
    """The first sentence of a caption, then all others in random order, each with a full stop."""
    parts = []
    for caption in _shuffled(captions, rng):
        parts += _parts(caption)
    first, *others = parts
    return [first, *_shuffled(others, rng)]


def _parts(caption: str) -> list[str]:
    sentences = []
    for part in SENTENCE_END.split(caption.strip()):
        end = "" if part.endswith(("!", "?", ".")) else "."
        sentences.append(part + end)
    return sentences


def _shuffled(items: Iterable[str], rng: random.Random) -> list[str]:
    distinct = list(dict.fromkeys(items))
    return rng.sample(distinct, len(distinct))


def _may_exchange(word: str, other: str, tag: str) -> bool:
    """Whether two words say different things in the same form; "front" names no object."""
    if compatible(word, other) or kind(word, tag) != kind(other, tag):
        return False
    return word_set("light_nouns").isdisjoint((word.lower(), other.lower()))


def _only_in(sentence: Sentence, other: Sentence) -> list[int]:
    """The words that may be exchanged: none that the other sentence has as well."""
    known = {word.lower() for word in other.words}
    indices = []
    for i, word in enumerate(sentence.words):
        if sentence.tags[i] in EXCHANGED and word.lower() not in known:
            indices.append(i)
    return indices
