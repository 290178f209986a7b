"""Takes units of captions, relations and objects, with foils of them, for `UnitContrast`.

In: groups. Out: groups of the same images whose texts are units and foils. Never: a foil that is
known to be true.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from pydantic import PositiveInt
from typing_extensions import override

from vlmtune.data.caption_draw import draw_captions
from vlmtune.data.caption_negatives import CaptionNegatives
from vlmtune.data.noun_phrases import NounPhrases, object_spans, span_text
from vlmtune.language.tagger import Tagger, tagged_sentence
from vlmtune.types import Group

ENDS = frozenset({"PUNCT", "CCONJ", "SCONJ", "PRON"})


class CaptionUnits(NounPhrases):
    """The relations of a caption, or its objects if it has none, some in each epoch, and foils.

    A relation is two objects in a row with a verb or a preposition between them and no comma or
    conjunction: "man riding a horse", "red cube left of the blue sphere". A verb behind another
    relation, or behind a list in it, may belong to any of its objects, so "a woman with a hat
    holding an umbrella" gives "woman with a hat" alone. A corpus with a scene graph needs a
    subclass with another `of_caption`. Objects are `NounPhrases`.

    Each image draws `count` of the units of its captions anew in each epoch. A foil is a rewritten
    unit ("man leading a horse"), false of the images of its unit. Other images neither know it nor
    are compared with it. What equals a unit or an object of the image's captions, drawn or not, or
    the end of one ("dog" of "black dog"), is not a foil.

    Source: Kargi, Uselis and Oh 2026 (arXiv 2602.23906), relations first, two units an image and
    one foil a unit. There a language model writes units and foils, and some units join two objects
    by "and"; here they follow rules.

    Args:
        foils: Rewrites units, as `data.negatives` rewrites captions.
        count: Units of each image, at most.
        tagger: Tags parts of speech; None uses the `LexiconTagger`.

    Example:
        >>> from vlmtune.language.caption_edits import SwapNouns
        >>> from vlmtune.language.rewriting import Rewriter
        >>> units = CaptionUnits(CaptionNegatives(Rewriter([SwapNouns()])))
        >>> units.of_caption("A man riding a horse, and a dog.")
        ('man riding a horse',)
        >>> units.of_caption("A horse and a black dog.")
        ('horse', 'black dog')
    """

    def __init__(
        self, foils: CaptionNegatives, count: PositiveInt = 2, tagger: Tagger | None = None
    ) -> None:
        super().__init__(tagger)
        self.foils = foils
        self.count = count

    @override
    def prepare(self, captions: Callable[[], Iterable[str]]) -> None:
        self.foils.prepare(captions)

    @override
    def of_caption(self, caption: str) -> tuple[str, ...]:
        """Returns the relations of a caption, else its objects, each once; at least one unit."""
        return self._relations(caption) or super().of_caption(caption)

    @override
    def known_of(self, caption: str) -> tuple[str, ...]:
        # A caption with a relation gives no objects as units, and yet states them: "black dog" and
        # with it "dog".
        units = (*self._relations(caption), *super().of_caption(caption))
        known = list(units)
        for unit in units:
            # A caption without a phrase stands for itself, and may deny what is in it.
            if unit == caption:
                continue
            words = unit.split()
            for start in range(1, len(words)):
                known.append(" ".join(words[start:]))
        return tuple(dict.fromkeys(known))

    def _relations(self, caption: str) -> tuple[str, ...]:
        sentence = tagged_sentence(caption, self.tagger)
        relations = []
        is_object = False  # of the relation before, or listed with one
        for first, second in pairwise(object_spans(sentence)):
            between = set(sentence.tags[first[1] : second[0]])
            related = ENDS.isdisjoint(between) and not between.isdisjoint(("VERB", "ADP"))
            if related and not ("VERB" in between and is_object):
                relations.append(span_text(sentence, first[0], second[1]))
            # "suit and tie", unlike ", and a man": a new clause has a subject of its own.
            listed = between <= {"CCONJ", "DET"} or between <= {"PUNCT", "DET"}
            is_object = related or (is_object and listed)
        return tuple(dict.fromkeys(relations))

    @override
    def groups(
        self, groups: Sequence[Group], seed: int = 0, epoch: int = 0, whole: Sequence[Group] = ()
    ) -> list[Group]:
        units = super().groups(groups, whole=whole)
        sampled = draw_captions(units, self.count, seed, epoch)
        # No foil is a unit that was not drawn.
        return self.foils.added(sampled, seed, epoch, units)
