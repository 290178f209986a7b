r"""How likely a caption is as text: an interpolated Kneser-Ney model of word n-grams.

$p_k(w \mid h) = \frac{\max(c(hw) - D_k, 0)}{\sum_v c(hv)}
  + \frac{D_k\, N_{1+}(h\bullet)}{\sum_v c(hv)}\, p_{k-1}(w \mid h')$

with $h'$ the history $h$ without its first word, $N_{1+}(h\bullet)$ how many words were seen behind
$h$, and $p_0 = 1 / |V|$. Counts $c$ are occurrences in the longest n-grams and in those that begin
a caption, else the number of different words seen before the n-gram. The discount is
$D_k = n_1 / (n_1 + 2 n_2)$, $n_r$ being how many n-grams of length k have count r.
Source: Kneser and Ney 1995; Chen and Goodman 1999, section 2.7 and equation 2.9 (interpolated).
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from vlmtune.config import Configured
from vlmtune.errors import UserError
from vlmtune.language.words import words

VERSION = 1
START, END, UNKNOWN = "<s>", "</s>", "<unk>"
Gram = tuple[str, ...]


class NGram(Configured):
    """An n-gram model of captions, in lower case, punctuation marks being words.

    What it is for: a benchmark whose true captions are simply the likelier texts can be solved
    without looking (SugarCrepe, section 3).

    Args:
        order: Words of the longest n-gram.
        minimum: Words seen less often are unknown words.

    Raises:
        UserError: One of them is below 1.

    Example:
        >>> model = NGram(order=2).fit(["a red cube", "a blue cube", "a blue ball"])
        >>> model.log_probability("a red cube") > model.log_probability("cube a red")
        True
        >>> total = sum(model.probability(word, ("a",)) for word in model.vocabulary)
        >>> round(total, 12)
        1.0
    """

    def __init__(self, order: int = 3, minimum: int = 1) -> None:
        for name, value in (("order", order), ("minimum", minimum)):
            if value < 1:
                raise UserError(f"expected an {name} of at least 1, got {value}: raise it")
        self.order, self.minimum = order, minimum
        self.vocabulary: frozenset[str] = frozenset()
        self._grams: Counter[Gram] = Counter()
        self._levels: list[_Level] = []

    def fit(self, captions: Iterable[str]) -> "NGram":
        """Counts the n-grams of captions, in place of those counted before; returns itself.

        Raises:
            UserError: There is no caption.
        """
        sentences = [_words(caption) for caption in captions]
        if not sentences:
            raise UserError("expected captions to fit an n-gram model to, got none: give some")
        seen = Counter(word for sentence in sentences for word in sentence)
        known = {word for word, count in seen.items() if count >= self.minimum}
        grams: Counter[Gram] = Counter()
        for sentence in sentences:
            line = [START, *(w if w in known else UNKNOWN for w in sentence), END]
            for stop in range(2, len(line) + 1):
                grams[tuple(line[max(0, stop - self.order) : stop])] += 1
        self._set(frozenset(known) | {END, UNKNOWN}, grams)
        return self

    def probability(self, word: str, history: Sequence[str] = ()) -> float:
        """Probability of a word behind others; those of the whole vocabulary add up to 1.

        Args:
            word: A word in lower case, or "</s>" for the end of the caption.
            history: The words before, the last one last, from "<s>" on.

        Raises:
            UserError: Nothing was fitted.
        """
        if not self._levels:
            raise UserError("expected a fitted n-gram model, got none: call `fit` with captions")
        known = {*self.vocabulary, START}
        word = word if word in self.vocabulary else UNKNOWN
        before = tuple(w if w in known else UNKNOWN for w in history)
        value = 1 / len(self.vocabulary)
        for level in self._levels[: len(before) + 1]:
            size = level.length - 1
            value = level.mixed(word, before[len(before) - size :] if size else (), value)
        return value

    def tokens(self, caption: str) -> list[tuple[str, float]]:
        """The words of a caption and its end, each with its natural log-probability."""
        line = [START, *_words(caption), END]
        return [
            (line[i], math.log(self.probability(line[i], line[max(0, i - self.order + 1) : i])))
            for i in range(1, len(line))
        ]

    def log_probability(self, caption: str, per_token: bool = False) -> float:
        """Natural log-probability of a caption, its end included.

        Args:
            caption: The caption.
            per_token: The mean over words and the end, in place of the sum.
        """
        values = [value for _, value in self.tokens(caption)]
        return math.fsum(values) / (len(values) if per_token else 1)

    def save(self, path: Path) -> None:
        """Writes the counts as JSON, whole or not at all.

        Raises:
            UserError: The file cannot be written.
        """
        content = {
            "version": VERSION,
            "order": self.order,
            "minimum": self.minimum,
            "vocabulary": sorted(self.vocabulary),
            "grams": {" ".join(gram): count for gram, count in sorted(self._grams.items())},
        }
        part = path.with_name(f"{path.name}.part")
        try:
            part.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
            part.replace(path)
        except OSError as error:
            raise UserError(
                f"expected to write {path}, got {type(error).__name__} ({error}): correct the path"
            ) from error

    @classmethod
    def load(cls, path: Path) -> "NGram":
        """Reads what `save` wrote.

        Raises:
            UserError: The file cannot be read or holds something else.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["version"] != VERSION:
                raise ValueError(f"version {content['version']}")
            model = cls(int(content["order"]), int(content["minimum"]))
            grams = Counter({tuple(g.split(" ")): int(n) for g, n in content["grams"].items()})
            if not grams or any(count < 1 for count in grams.values()):
                raise ValueError("counts below 1")
            model._set(frozenset(map(str, content["vocabulary"])), grams)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"expected an n-gram model as NGram.save writes it in {path}, got "
                f"{type(error).__name__} ({error}): fit it again or correct the path"
            ) from error
        return model

    def _set(self, vocabulary: frozenset[str], grams: Counter[Gram]) -> None:
        self.vocabulary, self._grams = vocabulary, grams
        counts: Counter[Gram] = grams
        levels = []
        for length in range(self.order, 0, -1):
            levels.append(_Level(length, {g: n for g, n in counts.items() if len(g) == length}))
            # What begins a caption has no word before it, and keeps its own count.
            fewer = Counter({g: n for g, n in grams.items() if len(g) < length})
            fewer.update(g[1:] for g in counts if len(g) == length and length > 1)
            counts = fewer
        self._levels = levels[::-1]


class _Level:
    """The n-grams of one length: their counts by history, and the discount."""

    def __init__(self, length: int, counts: Mapping[Gram, int]) -> None:
        self.length = length
        self.behind: dict[Gram, dict[str, int]] = defaultdict(dict)
        for gram, count in counts.items():
            self.behind[gram[:-1]][gram[-1]] = count
        self.totals = {history: sum(of.values()) for history, of in self.behind.items()}
        once, twice = (sum(n == r for n in counts.values()) for r in (1, 2))
        # Without n-grams seen once or twice the estimate is 0 or 1, which leave nothing to others
        # or nothing to itself.
        self.discount = once / (once + 2 * twice) if once and twice else 0.5

    def mixed(self, word: str, history: Gram, lower: float) -> float:
        """The probability of a word, with `lower` that of the shorter history."""
        of = self.behind.get(history)
        if of is None:
            return lower
        total = self.totals[history]
        share = max(of.get(word, 0) - self.discount, 0) / total
        return share + self.discount * len(of) / total * lower


def _words(caption: str) -> list[str]:
    return words(caption.lower())
