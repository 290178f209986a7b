"""Takes the noun phrases of captions, for objectives that compare them with images.

In: groups. Out: groups of the same images whose texts are phrases. Never: a phrase of a false text.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import override

from vlmtune.data.group_changes import CaptionPhrases
from vlmtune.language.canonical import canonical
from vlmtune.language.phrases import denied_words, noun_phrases
from vlmtune.language.tagger import LexiconTagger, Tagger, tagged_sentence
from vlmtune.language.words import Sentence
from vlmtune.storage.files import read_json
from vlmtune.types import Group


class NounPhrases(CaptionPhrases):
    """The noun phrases of the captions that are true of an image: "red car", "two black dogs".

    A phrase is nouns in a row with the adjectives and the numeral before them, in lower case and
    without an article. Nouns that name no object ("front", "side") are left out, and so is what a
    caption denies ("no cat or dog"). A caption without a phrase stands for itself. Phrases are
    texts of their own, beside the captions of a batch: only objectives that ask for phrases get
    them.

    Equal phrases of a batch are one text, true of each image that has a caption with it, drawn or
    not. Of other images its truth is unknown.

    Args:
        tagger: Tags parts of speech; None uses the `LexiconTagger`.
        file: A JSON file `{caption: [phrase, ...]}` with other phrases, such as those of a language
            model. Captions that it lacks, in any case, are tagged.

    Example:
        >>> NounPhrases().of_caption("A red car in front of two big, black dogs.")
        ('red car', 'two big, black dogs')
    """

    def __init__(self, tagger: Tagger | None = None, file: str | None = None) -> None:
        self.tagger: Tagger = LexiconTagger() if tagger is None else tagger
        self.file = file
        self._given: dict[str, list[str]] = {}
        if file is not None:
            path = Path(file).expanduser()
            given = read_json(path, "lists of phrases by caption", shape=dict[str, list[str]])
            for caption, phrases in given.items():
                self._given[canonical(caption)] = [one for one in phrases if one.strip()]

    def of_caption(self, caption: str) -> tuple[str, ...]:
        """Returns the phrases of a caption in order, each once; at least one."""
        phrases = self._given.get(canonical(caption))
        if phrases is None:
            sentence = tagged_sentence(caption, self.tagger)
            phrases = [span_text(sentence, *span) for span in object_spans(sentence)]
        if not phrases:
            return (caption,)
        return tuple(dict.fromkeys(phrases))

    def known_of(self, caption: str) -> tuple[str, ...]:
        """Returns the phrases that a true caption makes true, shown or not."""
        return self.of_caption(caption)

    @override
    def groups(
        self, groups: Sequence[Group], seed: int = 0, epoch: int = 0, whole: Sequence[Group] = ()
    ) -> list[Group]:
        del seed, epoch  # all phrases, in each epoch
        # Each group knows its own captions, so that the truth is the same on any number of ranks.
        texts_of: dict[str, dict[str, str]] = {}
        for group in (*whole, *groups):
            texts = texts_of.setdefault(group.key, {})
            texts |= zip(group.text_ids, group.texts, strict=True)
        return [self._group(group, texts_of[group.key]) for group in groups]

    def _group(self, group: Group, texts: Mapping[str, str]) -> Group:
        truth_of: dict[str, Tensor] = {}
        for caption, truth in zip(group.texts, group.truth.T, strict=True):
            # A hard negative names what the images may not show.
            if not truth.any():
                continue
            # A phrase of several captions is true where any of them is.
            for phrase in self.of_caption(caption):
                truth_of[phrase] = truth | truth_of.get(phrase, False)
        phrases = tuple(truth_of)
        # A group without a true text has no phrase, and its matrix no column.
        truth = torch.zeros(len(group.image_ids), len(phrases), dtype=torch.bool)
        for column, is_true in enumerate(truth_of.values()):
            truth[:, column] = is_true
        true_ids = []
        for row, names in zip(truth.tolist(), group.true_ids, strict=True):
            known = set(itertools.compress(phrases, row))
            # Captions that were not drawn are true of the image as well.
            for name in names:
                known.update(self.known_of(texts.get(name, name)))
            true_ids.append(frozenset(known))
        # What is not true is unknown, within the group too: the captions need not name everything.
        return Group(
            group.key,
            group.image_ids,
            phrases,
            phrases,
            truth,
            tuple(true_ids),
            same_group=truth,
        )


def object_spans(sentence: Sentence) -> list[tuple[int, int]]:
    """Where the phrases of objects begin, with their numeral, and end; none that is denied."""
    denied = denied_words(sentence)
    spans = []
    for phrase in noun_phrases(sentence):
        if not phrase.light and phrase.noun not in denied:
            spans.append((phrase.whole, phrase.stop))
    return spans


def span_text(sentence: Sentence, start: int, stop: int) -> str:
    """The words of a span with the gaps between them, in lower case."""
    # The gap before the first word is not part of the phrase.
    text = sentence.words[start]
    for position in range(start + 1, stop):
        text += sentence.gaps[position] + sentence.words[position]
    return canonical(text)
