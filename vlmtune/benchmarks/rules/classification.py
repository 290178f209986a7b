"""The classification rule: each image is of one of several classes, whose prompts are scored.

In: `ClassItem`s and their `Candidate`s from a reader. Out: top-1 accuracy, by group where there are
groups, and top-k. Never: files.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from typing_extensions import override

from vlmtune.benchmarks.base import SHOWN, Benchmark, gallery
from vlmtune.benchmarks.items import number, numbered
from vlmtune.benchmarks.pair_scorer import MatrixFunction, PairScorer, check_scores, pair_scorer
from vlmtune.benchmarks.rules.class_items import Bank, Candidate, ClassItem, ClassItems, make_bank
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


class Ranks(NamedTuple):
    """The best true candidate of each of n items, and the best false one."""

    ranks: Int[Tensor, "n"]  # its rank among the false candidates, from 1
    best: Int[Tensor, "n 2"]  # positions of the best true and the best false candidate
    scores: Float[Tensor, "n 2"]


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

    def group_clusters(self, group: str, items: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """The clusters of the items of a group."""
        return self.items.clusters[items]

    @override
    def arrange(self, items: Sequence[ClassItem]) -> ClassItems:
        images, image = numbered(item.image for item in items)
        groups, members = numbered(item.group for item in items)
        _, clusters = numbered(item.cluster for item in items)
        # Sorted, because `series` has the classes in alphabetical order.
        names = sorted({item.label for item in items})
        labels = number(names)
        label = torch.tensor([labels[item.label] for item in items])

        # The items of each bank: of one group, or all.
        rows_of = {"": torch.arange(len(items))}
        if self.bank_per_group:
            rows_of = {}
            for group_number, group in enumerate(groups):
                rows_of[group] = (members == group_number).nonzero()[:, 0]
        texts: dict[str, int] = {}
        banks = []
        chance = torch.zeros(len(items), dtype=torch.float64)
        candidate_counts = torch.zeros(len(items), dtype=torch.int64)
        for group, rows in rows_of.items():
            candidates = self.candidates(group)
            bank = make_bank(candidates, texts, labels, rows, image[rows], label[rows])
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
            for start in range(0, len(images), size):
                part = images[start : start + size]
                scores = torch.as_tensor(score(part, texts, None)).detach().cpu()
                check_scores(scores, (len(part), len(texts)), self.name)
                values = bank.by_candidate(scores)
                ranks.append(self._ranks(values, bank, start))
        return self._evaluate_ranks(ranks)

    @override
    def evaluate(self, scores: Float[Tensor, "N M"]) -> Result:
        ranks = []
        for bank in self.items.banks:
            prompt_scores = scores[bank.images][:, bank.texts]
            values = bank.by_candidate(prompt_scores)
            ranks.append(self._ranks(values, bank))
        return self._evaluate_ranks(ranks)

    def _by_classifier(self, score: ImageClassifier) -> Result:
        # A classifier has one bank: its classes are the same for every group.
        images = self.items.images
        outputs = self.outputs(score.labels)
        assert outputs is not None, "the suite leaves such benchmarks out"
        values = score.class_scores(images, outputs)
        check_scores(values, (len(images), len(outputs)), self.name)
        return self.ranked(values[self.items.banks[0].images])

    def ranked(self, values: Float[Tensor, "n C"]) -> Result:
        """Evaluates the scores of the candidates of the only bank."""
        ranks = self._ranks(values, self.items.banks[0])
        return self._evaluate_ranks([ranks])

    def _ranks(self, values: Float[Tensor, "k C"], bank: Bank, start: int = 0) -> Ranks:
        """Ranks the candidates of the items from `start` on."""
        # In parts: comparisons of a bank of 10^8 scores would not fit beside it.
        # `start` is that of a bank which is itself scored in parts.
        rows = max(1, COMPARED // values.shape[1])
        ranks = []
        for part in values.split(rows):
            labels = bank.labels[start : start + len(part)]
            start += len(part)
            is_true = labels[:, None] == bank.classes
            ranks.append(_rank(part, is_true, self.strict))
        return _joined(ranks)

    def _evaluate_ranks(self, parts: Sequence[Ranks]) -> Result:
        items = self.items
        # Banks come one after the other; items keep the order of the file.
        bank_order = torch.cat([bank.items for bank in items.banks])
        order = bank_order.argsort()
        joined = _joined(parts)
        ranked = Ranks(joined.ranks[order], joined.best[order], joined.scores[order])
        hits = (ranked.ranks == 1).double()
        every_item = torch.arange(len(hits))
        metrics: dict[str, MetricValue] = {}
        fewest = int(items.candidates.min())
        for key, k in self.keys.items():
            if k == 1 or k < fewest:
                metrics[key] = self._rate(ranked, k, every_item, items.clusters)
        # What random scores reach is a mean over groups as well, as groups may have other classes.
        expected = macro_mean(items.chance, items.members, items.clusters)
        macro = macro_mean(hits, items.members, items.clusters, expected.value)
        metrics["macro_accuracy"] = macro

        examples: list[Example] = []
        if self._reports_groups:
            for group_number, group in enumerate(items.groups):
                rows = (items.members == group_number).nonzero()[:, 0]
                clusters = self.group_clusters(group, rows)
                for key, k in self.group_keys.items():
                    metrics[f"{key}/{group}"] = self._rate(ranked, k, rows, clusters)
                examples += self._examples(ranked, rows)
        else:
            examples += self._examples(ranked, every_item)
        series = self._series(hits)
        return self.result(metrics, hits, items.clusters, series=series, examples=tuple(examples))

    @property
    def _reports_groups(self) -> bool:
        """Whether there is a number of each group; a table of the user may have no groups."""
        return bool(self.group_keys) and self.items.groups != ("",)

    def _series(self, hits: Float[Tensor, "n"]) -> dict[str, tuple[float, ...]]:
        if not self.class_series:
            return {}
        labels = self.items.labels
        sizes = torch.bincount(labels)
        hit_counts = torch.bincount(labels, weights=hits)
        accuracies = hit_counts / sizes
        return {"class_accuracy": tuple(accuracies.tolist())}

    def _rate(
        self, ranked: Ranks, k: int, rows: Int[Tensor, "k"], clusters: Int[Tensor, "k"]
    ) -> MetricValue:
        """How often a true candidate is among the first k."""
        is_hit = ranked.ranks[rows] <= k
        hits = is_hit.double()
        chance = self.items.chance[rows]
        if k > 1:
            # Each class has one candidate where more than the first rank counts.
            sizes = self.items.candidates[rows].double()
            # A number over a tensor is a product with its inverse, which rounds twice.
            ranks_that_count = torch.full_like(sizes, k)
            chance = (ranks_that_count / sizes).clamp(max=1)
        # The mean of equal numbers may differ from them by rounding.
        are_equal = bool((chance == chance[0]).all())
        mean = chance[0] if are_equal else chance.mean()
        return cluster_robust_mean(hits, clusters, float(mean))

    def _examples(self, ranked: Ranks, rows: Int[Tensor, "k"]) -> tuple[Example, ...]:
        """The first right and wrong images: of each class, or of each image within a group."""
        right = (ranked.ranks[rows] == 1).tolist()
        # No two pictures of one class in the gallery of all; within a group any two are shown.
        alike = rows if self._reports_groups else self.items.labels[rows]
        key = alike.tolist().__getitem__

        def show(row: int) -> Example:
            return self._show(ranked, int(rows[row]))

        return gallery(right, key, show, self.shown)

    def _show(self, ranked: Ranks, i: int) -> Example:
        """Shows the image of item i with the candidate that won, and the best other one."""
        items = self.items
        bank = items.banks[0]
        if self.bank_per_group:
            bank = items.banks[int(items.members[i])]
        true, false = ranked.best[i].tolist()
        true_score, false_score = ranked.scores[i].tolist()
        correct = int(ranked.ranks[i]) == 1
        if correct:
            winner, other = true, false
            score = true_score
            verdict = "not"
        else:
            winner, other = false, true
            score = false_score
            verdict = "true"
        query = bank.names[winner]
        # ImageNet's names may lack the class, or name two candidates alike.
        has_candidate = bool((bank.classes == items.labels[i]).any())
        if has_candidate and bank.names[other] != query:
            query += f" ({verdict}: {bank.names[other]})"
        position = (bank.items == i).nonzero()[0, 0]
        image = items.images[int(bank.images[position])]
        return Example(query, (image,), (score,), (correct,), correct)


def _rank(values: Float[Tensor, "n C"], is_true: Bool[Tensor, "n C"], strict: bool) -> Ranks:
    """Ranks the best true candidate; of equal scores a false one comes first, or by position."""
    # -inf takes the other side out of the argmax.
    true_values = torch.where(is_true, values, -torch.inf)
    false_values = torch.where(is_true, -torch.inf, values)
    best = true_values.argmax(dim=1)
    rival = false_values.argmax(dim=1)
    # A true candidate without a rival is its own.
    rival = torch.where(is_true.all(dim=1), best, rival)
    pair = torch.stack([best, rival], dim=1)
    scores = values.gather(1, pair).double()
    ties = "wrong" if strict else "first"
    ranks = true_ranks(values, is_true, ties)
    return Ranks(ranks, pair, scores)


def _joined(parts: Sequence[Ranks]) -> Ranks:
    ranks = torch.cat([part.ranks for part in parts])
    best = torch.cat([part.best for part in parts])
    scores = torch.cat([part.scores for part in parts])
    return Ranks(ranks, best, scores)
