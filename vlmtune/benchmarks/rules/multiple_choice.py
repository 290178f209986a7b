"""The multiple-choice rule: one image, several captions, of which the true one must score best.

In: `ChoiceItem`s from a reader. Out: accuracy over items and over groups, and ranks. Never: files.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize
from typing_extensions import override

from vlmtune.benchmarks.base import Benchmark, embedded, gallery
from vlmtune.benchmarks.items import Comparison, Items, distinct_pairs, number
from vlmtune.benchmarks.pair_scorer import Embedder, MatrixFunction, PairScorer
from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import cluster_robust_mean, cluster_robust_rank, macro_mean
from vlmtune.metrics.multiple_choice import (
    Ties,
    choice_credit,
    choice_ranks,
    recall_chance,
    text_to_text_correct,
)
from vlmtune.results.metric_value import MetricValue, count
from vlmtune.results.result import Example, Result
from vlmtune.types import ImageRef


@dataclass(frozen=True)
class ChoiceItem:
    """One item."""

    image: ImageRef  # the image, whole or cropped
    candidates: tuple[str, ...]  # at least two captions, the true ones first
    group: str = ""  # relation, attribute pair or type; "" without groups
    true: int = 1  # how many of the candidates are true


@dataclass(frozen=True)
class ChoiceItems(Items):
    """The n items as arrays, their candidates in up to m columns, the true ones first."""

    # Positions of the candidates in `pairs`; -1 where an item has no further one
    positions: Int[Tensor, "n m"]
    true_counts: Int[Tensor, "n"]  # how many candidates are true
    groups: tuple[str, ...]  # the distinct groups
    members: Int[Tensor, "n"]  # number of the group of each item
    identical: int  # how many items have a false candidate that repeats a true one

    @property
    @override
    def true(self) -> Int[Tensor, "T"]:
        return self.positions[torch.arange(self.positions.shape[1]) < self.true_counts[:, None]]

    @property
    @override
    def evaluated(self) -> tuple[Comparison, ...]:
        assert self.pairs is not None
        pairs, out = self.pairs.tolist(), []
        for row, true in zip(self.positions.tolist(), self.true_counts.tolist(), strict=True):
            compared = [pairs[position] for position in row if position >= 0]
            texts = tuple(self.texts[column] for _, column in compared)
            out.append(Comparison((self.images[compared[0][0]],), texts[:true], texts[true:]))
        return tuple(out)

    @property
    def sizes(self) -> Int[Tensor, "n"]:
        """Number of candidates of each item."""
        return (self.positions >= 0).sum(dim=1)

    def group_sizes(self) -> dict[str, int]:
        """Number of items of each group."""
        counts = torch.bincount(self.members, minlength=len(self.groups)).tolist()
        return dict(zip(self.groups, counts, strict=True))

    def rows_of(self, counted: Bool[Tensor, "n"]) -> dict[str, Int[Tensor, "k"]]:
        """The items of each group that count, without groups of none."""
        order = torch.argsort(self.members, stable=True)
        rows = order.split(list(self.group_sizes().values()))
        counted_rows = ((name, x[counted[x]]) for name, x in zip(self.groups, rows, strict=True))
        return {name: x for name, x in counted_rows if len(x)}

    def chance(self) -> Float[Tensor, "n"]:
        """The probability that random scores put all true candidates first."""
        shapes = list(zip(self.sizes.tolist(), self.true_counts.tolist(), strict=True))
        return 1 / torch.tensor([comb(*shape) for shape in shapes]).double()


class MultipleChoice(Benchmark[ChoiceItems]):
    """Images with candidate captions; an item is right where its true caption scores best.

    An item with several true captions is right where each of them scores higher than every false
    one. A reader returns `ChoiceItem`s and, where it differs, overrides the hooks after it.

    - `accuracy`: fraction of items that are right (micro).
    - `macro_accuracy`: mean over groups of the accuracy within each, where there are groups; over
      the unions where `unions` unites groups.
    - `accuracy/<group>` and `accuracy/<union>`.
    - `mean_rank` and `median_rank` (rounded down) of the true caption, where an item has more than
      two candidates, and `recall@<k>` for each k of `recalls`.
    - `text_to_text_accuracy`, where items have several true captions and the model is dual: how
      often the first is closer to the second than to any false one; in "reference", each to each.
    - `identical_candidates`: how many items have a candidate that repeats the true one, as shuffles
      and swaps at times do; only where there are any.

    Conventions:

    - "strict": a tie loses. A candidate that repeats the true one is not false and is left out of
      its item; an item without any other is left out.
    - "reference": ties as `reference_ties` says, identical candidates stay, groups as
      `reference_groups` says.

    Intervals count images: items of one image file do not vary independently. They do not count
    captions, as intervals of `Paired` do: most benchmarks of this rule have captions of their own
    for each image, and such captions change no cluster. Where templates give many images the same
    captions (PUG: SPAR, ARO), an interval is about other images with these captions.
    """

    # Names of accuracy and macro accuracy
    keys: ClassVar[tuple[str, str]] = ("accuracy", "macro_accuracy")
    reference_ties: ClassVar[Ties] = "wrong"  # what the published script does with ties
    # Whether an item without false candidates is right in the published script
    reference_alone: ClassVar[bool] = False
    recalls: ClassVar[tuple[int, ...]] = ()  # the k of `recall@<k>`

    @abstractmethod
    def read(self) -> Sequence[ChoiceItem]:
        """Reads the annotation files: all items, in the order of the file."""

    def unions(self, groups: Sequence[str]) -> Mapping[str, Collection[str]]:
        """Groups united under one name, for an accuracy each and for the macro accuracy."""
        return {}

    def reference_groups(self, sizes: Mapping[str, int]) -> Collection[str]:
        """The groups of the published macro accuracy, out of groups with their numbers of items."""
        return sizes.keys()

    def counted(self, values: Float[Tensor, "n m"]) -> Bool[Tensor, "n"]:
        """Which items count, where that depends on their scores."""
        return torch.ones(len(values), dtype=torch.bool)

    def more_metrics(
        self, values: Float[Tensor, "n m"], clusters: Int[Tensor, "n"]
    ) -> dict[str, MetricValue]:
        """Further metrics of some items, reported of all and of each group."""
        return {}

    @override
    def arrange(self, items: Sequence[ChoiceItem]) -> ChoiceItems:
        checked, identical = self._checked(items)
        if not any(len(item.candidates) > item.true for item in checked):
            raise UserError(f"expected items with a false candidate in {self.name}, got none")
        rows = number(item.image for item in checked)
        columns = number(text for item in checked for text in item.candidates)
        groups = number(item.group for item in checked)
        files = number(item.image.path for item in checked)
        width = max(len(item.candidates) for item in checked)
        # Unused columns repeat the first candidate, so that they need no score.
        codes = [[columns[text] for text in item.candidates] for item in checked]
        code = torch.tensor([row + row[:1] * (width - len(row)) for row in codes])
        images = torch.tensor([rows[item.image] for item in checked])
        pairs, positions = distinct_pairs(images[:, None].expand_as(code), code)
        true_counts = torch.tensor([item.true for item in checked])
        positions[torch.arange(width) >= torch.tensor([len(row) for row in codes])[:, None]] = -1
        arrays = ChoiceItems(
            images=tuple(rows),
            texts=tuple(columns),
            pairs=pairs,
            clusters=torch.tensor([files[item.image.path] for item in checked]),
            compared=tuple(
                Comparison((x.image,), x.candidates[: x.true], x.candidates[x.true :])
                for x in items
            ),
            positions=positions,
            true_counts=true_counts,
            groups=tuple(groups),
            members=torch.tensor([groups[item.group] for item in checked]),
            identical=identical,
        )
        if self.primary == self.keys[1] and not self._macro_groups(arrays):
            raise UserError(
                f"expected a group that counts in the reference convention of {self.name}, got "
                f"none among {len(checked)} items: use more items or the strict convention"
            )
        return arrays

    def _checked(self, items: Sequence[ChoiceItem]) -> tuple[list[ChoiceItem], int]:
        """The items as the convention counts them, and how many have an identical candidate."""
        checked, identical = [], 0
        for item in items:
            true, false = item.candidates[: item.true], item.candidates[item.true :]
            alone = not false and self.reference_alone and not self.strict
            if not (false or alone) or not all(text.strip() for text in item.candidates):
                raise UserError(
                    f"expected a true caption and at least one other in {self.name}, none blank, "
                    f"got {str(item.candidates)[:60]} for {item.image.path.name}: "
                    "download the file again"
                )
            if set(true) & set(false):
                identical += 1
                if self.strict:
                    false = tuple(text for text in false if text not in true)
                    item = replace(item, candidates=true + false)
            if false or alone:
                checked.append(item)
        return checked, identical

    @override
    def run(self, score: PairScorer | MatrixFunction) -> Result:
        result = super().run(score)
        several = (self.items.true_counts > 1).nonzero()[:, 0]
        dual = getattr(score, "embeds", True)
        if not len(several) or not dual or not isinstance(score, Embedder):
            return result
        key, value = "text_to_text_accuracy", self._text_to_text(score, several)
        return replace(result, metrics={**result.metrics, key: value})

    def _text_to_text(self, score: Embedder, rows: Int[Tensor, "k"]) -> MetricValue:
        """How often the first two true captions are closer to each other than to a false one."""
        items = self.items
        assert items.pairs is not None
        unit = normalize(embedded(score.embed_texts(items.texts), len(items.texts), self.name))
        texts = unit[items.pairs[items.positions[rows].clamp(min=0), 1]]
        column = torch.arange(items.positions.shape[1])
        false = (column >= items.true_counts[rows, None]) & (items.positions[rows] >= 0)
        anchors = 1 if self.strict else 2
        wins = text_to_text_correct(texts, false, anchors)
        chance = (1 / (1 + anchors * false.sum(dim=1).double())).mean()
        return cluster_robust_mean(wins.double(), items.clusters[rows], float(chance))

    @override
    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        items = self.items
        values = scores.detach().cpu().double()[items.positions.clamp(min=0)]
        values[items.positions < 0] = -torch.inf
        chosen = _weakest_first(values, items.true_counts)
        ties = "wrong" if self.strict else self.reference_ties
        credit, counted = choice_credit(chosen, ties), self.counted(values)
        macro = torch.where(counted, self._macro_members(items), -1)
        metrics = self._accuracies(credit, values, macro, counted)
        metrics |= self._ranks(chosen, ties)
        alone = items.sizes == items.true_counts
        if items.identical:
            metrics["identical_candidates"] = count(items.identical, len(credit))
        if alone.any():
            metrics["without_negatives"] = count(int(alone.sum()), len(credit))
        rows = counted.nonzero()[:, 0].tolist()
        return self.result(
            metrics,
            credit,
            items.clusters,
            groups=() if self.primary == self.keys[0] else tuple(macro.tolist()),
            examples=gallery(
                [
                    None if lone else won == 1
                    for won, lone in zip(
                        credit[counted].tolist(), alone[counted].tolist(), strict=True
                    )
                ],
                lambda i: int(items.clusters[rows[i]]),
                lambda i: self._example(values[rows[i]], rows[i], bool(credit[rows[i]] == 1)),
                apart=True,
            ),
        )

    def _accuracies(
        self,
        credit: Float[Tensor, "n"],
        values: Float[Tensor, "n m"],
        macro: Int[Tensor, "n"],
        counted: Bool[Tensor, "n"],
    ) -> dict[str, MetricValue]:
        items, (key, macro_key) = self.items, self.keys
        chance, clusters = items.chance(), items.clusters

        def of(rows: Int[Tensor, "k"], suffix: str = "") -> dict[str, MetricValue]:
            mean = cluster_robust_mean(credit[rows], clusters[rows], float(chance[rows].mean()))
            more = self.more_metrics(values[rows], clusters[rows])
            return {f"{name}{suffix}": value for name, value in ({key: mean} | more).items()}

        metrics = of(counted.nonzero()[:, 0])
        if items.groups == ("",):
            return metrics
        if (macro >= 0).any():
            expected = macro_mean(chance, macro, clusters).value
            metrics[macro_key] = macro_mean(credit, macro, clusters, expected)
        listed = set(self.reference_groups(items.group_sizes()))
        rows_of = {name: rows for name, rows in items.rows_of(counted).items() if name in listed}
        named = {**self.unions(items.groups), **{group: (group,) for group in items.groups}}
        for name, groups in named.items():
            if rows := [rows_of[group] for group in groups if group in rows_of]:
                metrics |= of(torch.cat(rows), f"/{name}")
        return metrics

    def _ranks(self, chosen: Float[Tensor, "n m"], ties: Ties) -> dict[str, MetricValue]:
        items = self.items
        if chosen.shape[1] < 3 or (items.true_counts > 1).any():
            return {}
        sizes, ranks = items.sizes, choice_ranks(chosen, ties)
        expected = float((sizes.double() + 1).mean()) / 2
        middle = float(ranks.quantile(0.5).floor())
        metrics = {
            "mean_rank": cluster_robust_rank(ranks, items.clusters, expected),
            "median_rank": MetricValue(middle, len(ranks), higher_is_better=False, unit="rank"),
        }
        for k in self.recalls:
            hits = (ranks <= k).double()
            metrics[f"recall@{k}"] = cluster_robust_mean(
                hits, items.clusters, recall_chance(sizes, k)
            )
        return metrics

    def _macro_members(self, items: ChoiceItems) -> Int[Tensor, "n"]:
        """Of each item the group or union it counts in for the macro accuracy, -1 for none."""
        unions = self.unions(items.groups) or {group: (group,) for group in items.groups}
        macro = self._macro_groups(items)
        numbers = {g: i for i, union in enumerate(unions.values()) for g in union if g in macro}
        return torch.tensor([numbers.get(group, -1) for group in items.groups])[items.members]

    def _macro_groups(self, items: ChoiceItems) -> Collection[str]:
        if self.strict:
            return items.groups
        return set(self.reference_groups(items.group_sizes())) & set(items.groups)

    def _example(self, values: Float[Tensor, "m"], item: int, correct: bool) -> Example:
        items, true = self.items, int(self.items.true_counts[item])
        weakest = int(values[:true].argmin())
        rival = true + int(values[true:].argmax())
        first, second = (weakest, rival) if correct else (rival, weakest)
        pairs = items.pairs
        assert pairs is not None
        texts = [items.texts[int(pairs[items.positions[item, i], 1])] for i in (first, second)]
        return Example(
            query=f"{texts[0]} ({'not' if correct else 'true'}: {texts[1]})",
            images=(items.images[int(pairs[items.positions[item, 0], 0])],),
            scores=(float(values[first]),),
            true=(correct,),
            correct=correct,
        )


def _weakest_first(values: Float[Tensor, "n m"], true: Int[Tensor, "n"]) -> Float[Tensor, "n m"]:
    """The scores with those of all true candidates reduced to the lowest, in column 0."""
    is_true = torch.arange(values.shape[1]) < true[:, None]
    weakest = torch.where(is_true, values, torch.inf).amin(dim=1)
    return torch.where(is_true, -torch.inf, values).index_copy(
        1, torch.tensor([0]), weakest[:, None]
    )
