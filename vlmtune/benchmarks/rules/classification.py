"""The classification rule: each image is of one of several classes, whose prompts are scored.

In: `ClassItem`s and their `Candidate`s from a reader. Out: top-1 accuracy, by group where there are
groups, and top-k. Never: files.
"""

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from typing_extensions import override

from vlmtune.benchmarks.base import SHOWN, Benchmark, gallery
from vlmtune.benchmarks.items import Items, number, numbered
from vlmtune.benchmarks.pair_scorer import MatrixFunction, PairScorer, check_scores, pair_scorer
from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import cluster_robust_mean, macro_mean
from vlmtune.metrics.ranking import true_ranks
from vlmtune.results.metric_value import MetricValue
from vlmtune.results.result import Example, Result
from vlmtune.types import ImageRef

COMPARED = 4_000_000  # scores that are compared at a time
HELD = 2**28  # scores held at a time; more images are scored in parts


@runtime_checkable
class ImageClassifier(Protocol):
    """A model that scores classes of its own; it reads no prompts."""

    @property
    def labels(self) -> Sequence[str]:
        """What its classes are called."""
        ...

    def class_scores(
        self, images: Sequence[ImageRef], outputs: Sequence[int]
    ) -> Float[Tensor, "N C"]:
        """Scores N images for C of the classes, given by position in `labels`."""
        ...


@dataclass(frozen=True)
class ClassItem:
    """One image of one class."""

    image: ImageRef
    label: str
    group: str  # what accuracies are reported by, and what `limit` counts within
    cluster: Hashable  # items of one cluster do not vary independently


@dataclass(frozen=True)
class Candidate:
    """What an image may be taken for."""

    prompts: tuple[str, ...]  # its score is their mean score
    label: str | None  # the class it stands for; None for one that is never right
    name: str  # what the gallery calls it


@dataclass(frozen=True)
class Bank:
    """Images with the same candidates."""

    items: Int[Tensor, "n"]  # numbers of the n items
    images: Int[Tensor, "n"]  # numbers of their images
    texts: Int[Tensor, "m"]  # numbers of the distinct prompts
    prompts: Int[Tensor, "C t"]  # positions in `texts` of the t prompts of each of C candidates
    labels: Int[Tensor, "n"]  # number of the class of each item
    classes: Int[Tensor, "C"]  # number of the class that each candidate stands for, -1 for none
    names: tuple[str, ...]  # what each candidate is called

    @property
    def true(self) -> Int[Tensor, "T 2"]:
        """The true pairs of an image and a prompt."""
        is_true = self.labels[:, None] == self.classes
        # An image is true of every prompt of its candidates.
        rows, candidates = is_true.nonzero().unbind(dim=1)
        prompts = self.texts[self.prompts[candidates]]
        images = self.images[rows][:, None].expand_as(prompts)
        return torch.stack([images, prompts], dim=-1).view(-1, 2)

    def by_candidate(self, scores: Float[Tensor, "k m"]) -> Float[Tensor, "k C"]:
        """The mean score of the prompts of each candidate."""
        # One prompt each, in order: the usual case needs no copy of the scores.
        if self.prompts.equal(torch.arange(len(self.texts))[:, None]):
            return scores
        total = torch.zeros(len(scores), len(self.prompts), dtype=torch.float64)
        for columns in self.prompts.unbind(dim=1):
            total += scores[:, columns]
        return total / self.prompts.shape[1]


class Ranks(NamedTuple):
    """The best true candidate of each of n items, and the best false one."""

    ranks: Int[Tensor, "n"]  # its rank among the false candidates, from 1
    best: Int[Tensor, "n 2"]  # positions of the best true and the best false candidate
    scores: Float[Tensor, "n 2"]


@dataclass(frozen=True)
class ClassItems(Items):
    """The n items as arrays."""

    banks: tuple[Bank, ...]  # the items by candidates
    groups: tuple[str, ...]  # the distinct groups
    members: Int[Tensor, "n"]  # number of the group of each item
    labels: Int[Tensor, "n"]  # number of the class of each item, in alphabetical order
    chance: Float[Tensor, "n"]  # what random scores reach for each item
    candidates: Int[Tensor, "n"]  # number of candidates of each item

    @property
    @override
    def true(self) -> Int[Tensor, "T 2"]:
        return torch.cat([bank.true for bank in self.banks])


class Classification(Benchmark[ClassItems]):
    """Images that are classified by the prompts of their candidates; the best scored one wins.

    - `accuracy`: fraction of images for which a candidate of their class scores best.
    - `macro_accuracy`: mean over groups of the accuracy within each.
    - `accuracy@k` and the like as `keys` says, over all images, with more than k candidates.
    - `accuracy/<group>` and the like as `group_keys` says.

    Conventions: in "strict" a tie is wrong, in "reference" the first candidate wins, as with
    argmax. A reader returns `ClassItem`s from `read` and the candidates of each group from
    `candidates`.
    """

    # Names of top-k accuracies over all items, with their k
    keys: ClassVar[Mapping[str, int]] = {"accuracy": 1}
    # Names of top-k accuracies of each group
    group_keys: ClassVar[Mapping[str, int]] = {"accuracy": 1}
    limit_per_group: ClassVar[bool] = True
    bank_per_group: ClassVar[bool] = False  # whether each group has candidates of its own
    # Whether `series` has the accuracy of each class, in alphabetical order
    class_series: ClassVar[bool] = True
    # Right and wrong images in the gallery, of each group with `group_keys`
    shown: ClassVar[int] = SHOWN

    @abstractmethod
    def candidates(self, group: str) -> Sequence[Candidate]:
        """The candidates of a group; of every group without `bank_per_group`."""

    def outputs(self, labels: Sequence[str]) -> Sequence[int]:
        """The class of an image classifier, by its position in `labels`, of each candidate."""
        raise UserError(
            f"expected a model that reads texts for {self.name}, got an image classifier: leave "
            "the benchmark out"
        )

    def group_clusters(self, group: str, items: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """The clusters of the items of a group."""
        return self.items.clusters[items]

    @override
    def arrange(self, items: Sequence[ClassItem]) -> ClassItems:
        images, image = numbered(item.image for item in items)
        groups, members = numbered(item.group for item in items)
        _, clusters = numbered(item.cluster for item in items)
        # Sorted, because `series` has the classes in alphabetical order.
        labels = number(sorted({item.label for item in items}))
        label = torch.tensor([labels[item.label] for item in items])
        # The items of each bank: of one group, or all.
        rows_of = {"": torch.arange(len(items))}
        if self.bank_per_group:
            rows_of = {group: (members == g).nonzero()[:, 0] for g, group in enumerate(groups)}
        texts: dict[str, int] = {}
        banks = []
        chance = torch.zeros(len(items), dtype=torch.float64)
        candidate_counts = torch.zeros(len(items), dtype=torch.int64)
        for group, rows in rows_of.items():
            candidates = self.candidates(group)
            bank = _bank(candidates, texts, labels, rows, image[rows], label[rows])
            banks.append(bank)
            # Several candidates may stand for one class, and some for none.
            known = bank.classes[bank.classes >= 0]
            of_class = torch.bincount(known, minlength=len(labels))
            chance[rows] = of_class[bank.labels].double() / len(candidates)
            candidate_counts[rows] = len(candidates)
        return ClassItems(
            images=images,
            texts=tuple(texts),
            pairs=None,
            clusters=clusters,
            compared=(),
            banks=tuple(banks),
            groups=groups,
            members=members,
            labels=label,
            chance=chance,
            candidates=candidate_counts,
        )

    @override
    def run(self, score: PairScorer | MatrixFunction | ImageClassifier) -> Result:
        if isinstance(score, ImageClassifier):
            return self._by_classifier(score)
        items = self.items
        score = pair_scorer(score)
        ranks = []
        for bank in items.banks:
            texts = [items.texts[j] for j in bank.texts.tolist()]
            images = [items.images[i] for i in bank.images.tolist()]
            # The prompts of 1,000 classes times 50,000 images would not fit in memory at once.
            size = max(1, HELD // len(texts))
            name = self.name
            if self.bank_per_group:
                group = int(items.members[bank.items[0]])
                name = f"{items.groups[group]} of {self.name}"
            for start in range(0, len(images), size):
                part = images[start : start + size]
                scores = score(part, texts, None).detach().cpu()
                check_scores(scores, (len(part), len(texts)), name)
                ranks.append(self._ranks(bank.by_candidate(scores), bank, start))
        return self._evaluate_ranks(ranks)

    @override
    def evaluate(self, scores: Float[Tensor, "N M"]) -> Result:
        scores = scores.detach().cpu()
        ranks = []
        for bank in self.items.banks:
            of_prompts = scores[bank.images][:, bank.texts]
            ranks.append(self._ranks(bank.by_candidate(of_prompts), bank))
        return self._evaluate_ranks(ranks)

    def _by_classifier(self, score: ImageClassifier) -> Result:
        images = self.items.images
        outputs = self.outputs(score.labels)
        values = score.class_scores(images, outputs)
        check_scores(values, (len(images), len(outputs)), self.name)
        return self.ranked(values[self.items.banks[0].images])

    def ranked(self, values: Float[Tensor, "n C"]) -> Result:
        """Evaluates the scores of the candidates of the only bank."""
        return self._evaluate_ranks([self._ranks(values, self.items.banks[0])])

    def _ranks(self, values: Float[Tensor, "k C"], bank: Bank, start: int = 0) -> Ranks:
        """Ranks the candidates of the items from `start` on."""
        labels = bank.labels[start : start + len(values)]
        # In parts: comparisons of a bank of 10^8 scores would not fit beside it.
        rows = max(1, COMPARED // values.shape[1])
        ranks = []
        for part, true in zip(values.split(rows), labels.split(rows), strict=True):
            is_true = true[:, None] == bank.classes
            ranks.append(_rank(part, is_true, self.strict))
        return _joined(ranks)

    def _evaluate_ranks(self, parts: Sequence[Ranks]) -> Result:
        items = self.items
        # Banks come one after the other; items keep the order of the file.
        order = torch.cat([bank.items for bank in items.banks]).argsort()
        joined = _joined(parts)
        ranked = Ranks(joined.ranks[order], joined.best[order], joined.scores[order])
        hits = (ranked.ranks == 1).double()
        everything = torch.arange(len(hits))
        metrics: dict[str, MetricValue] = {}
        fewest = int(items.candidates.min())
        for key, k in self.keys.items():
            if k == 1 or k < fewest:
                metrics[key] = self._rate(ranked, k, everything, items.clusters)
        expected = macro_mean(items.chance, items.members, items.clusters).value
        metrics["macro_accuracy"] = macro_mean(hits, items.members, items.clusters, expected)

        examples: list[Example] = []
        if self.group_keys:
            for g, name in enumerate(items.groups):
                rows = (items.members == g).nonzero()[:, 0]
                clusters = self.group_clusters(name, rows)
                for key, k in self.group_keys.items():
                    metrics[f"{key}/{name}"] = self._rate(ranked, k, rows, clusters)
                examples += self._examples(ranked, rows)
        else:
            examples += self._examples(ranked, everything)
        series = {}
        if self.class_series:
            sizes = torch.bincount(items.labels)
            by_class = torch.bincount(items.labels, weights=hits) / sizes
            series["class_accuracy"] = tuple(by_class.tolist())
        return self.result(metrics, hits, items.clusters, series=series, examples=tuple(examples))

    def _rate(
        self, ranked: Ranks, k: int, rows: Int[Tensor, "k"], clusters: Int[Tensor, "k"]
    ) -> MetricValue:
        """How often a true candidate is among the first k."""
        hits = (ranked.ranks[rows] <= k).double()
        chance = self.items.chance[rows]
        if k > 1:
            # Each class has one candidate where more than the first rank counts.
            sizes = self.items.candidates[rows].double()
            chance = (torch.full_like(sizes, k) / sizes).clamp(max=1)
        # The mean of equal numbers may differ from them by rounding.
        mean = chance[0] if bool((chance == chance[0]).all()) else chance.mean()
        return cluster_robust_mean(hits, clusters, float(mean))

    def _examples(self, ranked: Ranks, rows: Int[Tensor, "k"]) -> tuple[Example, ...]:
        """The first right and wrong images: of each class, or of each image within a group."""
        right = (ranked.ranks[rows] == 1).tolist()
        alike = rows if self.group_keys else self.items.labels[rows]
        keys, numbers = alike.tolist(), rows.tolist()
        return gallery(
            right, keys.__getitem__, lambda row: self._show(ranked, numbers[row]), self.shown
        )

    def _show(self, ranked: Ranks, i: int) -> Example:
        """Shows the image of item i with the candidate that won, and the best other one."""
        items = self.items
        bank = items.banks[int(items.members[i])] if self.bank_per_group else items.banks[0]
        true, false = ranked.best[i].tolist()
        true_score, false_score = ranked.scores[i].tolist()
        correct = int(ranked.ranks[i]) == 1
        if correct:
            winner, other, verdict, score = true, false, "not", true_score
        else:
            winner, other, verdict, score = false, true, "true", false_score
        query = bank.names[winner]
        # ImageNet's names may lack the class, or name two candidates alike.
        has_candidate = bool((bank.classes == items.labels[i]).any())
        if has_candidate and bank.names[other] != query:
            query += f" ({verdict}: {bank.names[other]})"
        row = int((bank.items == i).nonzero()[0, 0])
        image = items.images[int(bank.images[row])]
        return Example(query, (image,), (score,), (correct,), correct)


def _bank(
    candidates: Sequence[Candidate],
    texts: dict[str, int],
    labels: Mapping[str, int],
    items: Int[Tensor, "n"],
    images: Int[Tensor, "n"],
    item_labels: Int[Tensor, "n"],
) -> Bank:
    """Makes a bank of n items; adds its prompts to the numbers of `texts`."""
    prompts = [candidate.prompts for candidate in candidates]
    columns = number(chain.from_iterable(prompts))
    text_numbers = [texts.setdefault(text, len(texts)) for text in columns]
    positions = [list(map(columns.__getitem__, group)) for group in prompts]
    classes = [labels.get(candidate.label or "", -1) for candidate in candidates]
    return Bank(
        items,
        images,
        torch.tensor(text_numbers),
        torch.tensor(positions),
        item_labels,
        torch.tensor(classes),
        tuple(candidate.name for candidate in candidates),
    )


def _rank(values: Float[Tensor, "n C"], is_true: Bool[Tensor, "n C"], strict: bool) -> Ranks:
    """Ranks the best true candidate; of equal scores a false one comes first, or by position."""
    # -inf takes the other side out of the argmax.
    best = torch.where(is_true, values, -torch.inf).argmax(dim=1)
    rival = torch.where(is_true, -torch.inf, values).argmax(dim=1)
    # A true candidate without a rival is its own.
    rival = torch.where(is_true.all(dim=1), best, rival)
    pair = torch.stack([best, rival], dim=1)
    ties = "wrong" if strict else "first"
    ranks = true_ranks(values, is_true, ties)
    return Ranks(ranks, pair, values.gather(1, pair).double())


def _joined(parts: Sequence[Ranks]) -> Ranks:
    return Ranks(*map(torch.cat, zip(*parts, strict=True)))
