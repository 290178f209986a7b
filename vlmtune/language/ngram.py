r"""The likelihood of a caption as text: an interpolated Kneser-Ney model of word n-grams.

$p_k(w \mid h) = \frac{\max(c(hw) - D_k, 0)}{\sum_v c(hv)}
  + \frac{D_k\, N_{1+}(h\bullet)}{\sum_v c(hv)}\, p_{k-1}(w \mid h')$

with $h'$ the history $h$ without its first word, $N_{1+}(h\bullet)$ the number of distinct words
after $h$, and $p_0 = 1 / |V|$. Counts $c$ are occurrences for the longest n-grams and for those
that begin a caption, else the number of distinct words before the n-gram. The discount is
$D_k = n_1 / (n_1 + 2 n_2)$, where $n_r$ n-grams of length k have count r.
Source: Kneser and Ney 1995; Chen and Goodman 1999, section 2.7 and equation 2.9 (interpolated).

In: captions of a corpus. Out: the log-probability of a caption.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pydantic import PositiveInt

from vlmtune.config import Configured
from vlmtune.errors import UserError
from vlmtune.language.words import words

START = "<s>"
END = "</s>"
UNKNOWN = "<unk>"
Gram = tuple[str, ...]


class NGram(Configured):
    """An n-gram model of captions, in lower case; punctuation marks count as words.

    If the true captions of a benchmark are simply the likelier texts, it can be solved without the
    images (SugarCrepe, section 3).

    Args:
        order: Length of the longest n-gram, in words.

    Example:
        >>> model = NGram(order=2).fit(["a red cube", "a blue cube", "a blue ball"])
        >>> model.log_probability("a red cube") > model.log_probability("cube a red")
        True
        >>> total = sum(model.probability(word, ("a",)) for word in model.vocabulary)
        >>> round(total, 12)
        1.0
    """

    def __init__(self, order: PositiveInt = 3) -> None:
        self.order = order
        self.vocabulary: frozenset[str] = frozenset()
        self._levels: list[_Level] = []

    def fit(self, captions: Iterable[str]) -> "NGram":
        """Counts the n-grams of captions, forgetting earlier ones; returns itself."""
        grams: Counter[Gram] = Counter()
        vocabulary: set[str] = set()
        for caption in captions:
            sentence = words(caption.lower())
            vocabulary.update(sentence)
            line = [START, *sentence, END]
            # Every n-gram that ends at a word; those at the beginning are shorter.
            for stop in range(2, len(line) + 1):
                start = max(0, stop - self.order)
                grams[tuple(line[start:stop])] += 1
        if not grams:
            raise UserError("expected captions for an n-gram model, got none: pass at least one")
        self.vocabulary = frozenset(vocabulary | {END, UNKNOWN})
        self._levels = _levels(grams, self.order)
        return self

    def probability(self, word: str, history: Sequence[str] = ()) -> float:
        """Probability of a word in lower case, or of the end "</s>", after others from "<s>" on."""
        word = word if word in self.vocabulary else UNKNOWN
        before = tuple(map(self._before, history))
        # Each level refines the probability that the next shorter history gave.
        value = 1 / len(self.vocabulary)
        for level in self._levels[: len(before) + 1]:
            start = len(before) - level.length + 1
            value = level.mixed(word, before[start:], value)
        return value

    def _before(self, word: str) -> str:
        return word if word == START or word in self.vocabulary else UNKNOWN

    def tokens(self, caption: str) -> list[tuple[str, float]]:
        """The words of a caption and its end, each with its natural log-probability."""
        line = [START, *words(caption.lower()), END]
        scored = []
        for i, word in enumerate(line[1:], 1):
            # No n-gram is longer than `order`, so a history has one word less.
            start = max(0, i - self.order + 1)
            probability = self.probability(word, line[start:i])
            # Never 0: the last level gives every word of the vocabulary some probability.
            scored.append((word, math.log(probability)))
        return scored

    def log_probability(self, caption: str, per_token: bool = False) -> float:
        """Natural log-probability of a caption and its end; `per_token` gives the mean instead."""
        values = [value for _, value in self.tokens(caption)]
        # Exact, so that the order of the words does not decide between two captions.
        total = math.fsum(values)
        return total / len(values) if per_token else total


class _Level:
    """The n-grams of one length: their counts by history, and the discount."""

    def __init__(self, length: int, counts: Mapping[Gram, int]) -> None:
        self.length = length
        self.next_words: dict[Gram, dict[str, int]] = defaultdict(dict)
        self.totals: Counter[Gram] = Counter()
        for gram, count in counts.items():
            history = gram[:-1]
            word = gram[-1]
            self.next_words[history][word] = count
            self.totals[history] += count
        counts_of_counts = Counter(counts.values())
        once = counts_of_counts[1]
        twice = counts_of_counts[2]
        # Without n-grams of count 1 or 2 the estimate is 0 or 1, and one of the two terms vanishes.
        self.discount = 0.5
        if once and twice:
            self.discount = once / (once + 2 * twice)

    def mixed(self, word: str, history: Gram, lower: float) -> float:
        """The probability of a word, given `lower`, its probability after the shorter history."""
        counts = self.next_words.get(history)
        if counts is None:
            return lower
        total = self.totals[history]
        left_of_count = max(counts.get(word, 0) - self.discount, 0)
        discounted = left_of_count / total
        # What the discount took from the words of the history goes to the shorter history.
        left = self.discount * len(counts) / total
        return discounted + left * lower


def _levels(grams: Counter[Gram], order: int) -> list[_Level]:
    """The counts of each length, from single words to `order`."""
    counts = grams
    levels = []
    for length in range(order, 0, -1):
        longest = {gram: n for gram, n in counts.items() if len(gram) == length}
        levels.append(_Level(length, longest))
        # N-grams that begin a caption have no word before them, so they keep their count.
        shorter = {gram: n for gram, n in grams.items() if len(gram) < length}
        counts = Counter(shorter)
        # Any other shorter n-gram counts the distinct words before it.
        if length > 1:
            counts.update(gram[1:] for gram in longest)
    levels.reverse()
    return levels
