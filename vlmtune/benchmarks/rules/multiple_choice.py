"""The multiple-choice rule: one image, several captions, of which the true one must score best.

In: `ChoiceItem`s from a reader. Out: accuracy over items and over groups, and ranks. Never: files.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import override

from vlmtune.benchmarks.base import Benchmark, gallery
from vlmtune.benchmarks.items import distinct_pairs, numbered
from vlmtune.benchmarks.pair_scorer import Embedder, MatrixFunction, PairScorer, embedded
from vlmtune.benchmarks.rules.choice_items import ChoiceItem, ChoiceItems
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


class MultipleChoice(Benchmark[ChoiceItems]):
    """Images with candidate captions; an item is right where its true caption scores best.

    An item with several true captions is right where each of them scores higher than every false
    one. A reader returns `ChoiceItem`s and, where it differs, overrides the hooks after it.

    - `accuracy`: fraction of items that are right (micro).
    - `macro_accuracy`: mean over groups of the accuracy within each, where there are groups; over
      the unions where `unions` unites groups.
    - `accuracy/<group>` and `accuracy/<union>`.
    - `mean_rank`, `median_rank` (rounded down) and `recall@<k>` for each k of `recalls`, where an
      item has more than two candidates.
    - `text_to_text_accuracy`, where items have several true captions and the model is dual: how
      often the first is closer to the second than to any false one; in "reference", each to each.
    - `identical_candidates`: how many items have a candidate that repeats the true one, as shuffles
      and swaps at times do; only where there are any.

    Conventions:

    - "strict": a tie loses. A candidate that repeats the true one is not false and is left out of
      its item; an item without any other is left out.
    - "reference": ties as `reference_ties` says, identical candidates stay, groups as
      `reference_groups` says.

    Intervals count images: items of one image file do not vary independently. Where templates give
    many images the same captions (PUG: SPAR, ARO), they are about other images with these captions.
    """

    # Names of accuracy and macro accuracy
    keys: ClassVar[tuple[str, str]] = ("accuracy", "macro_accuracy")
    reference_ties: ClassVar[Ties] = "wrong"  # what the published script does with ties
    # Whether an item without false candidates is right in the published script
    reference_alone: ClassVar[bool] = False
    recalls: ClassVar[tuple[int, ...]] = ()  # the k of `recall@<k>`

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
        checked, identical = self.checked(items)
        candidates = [item.scored_pairs for item in checked]
        sizes = [len(listed) for listed in candidates]
        true_counts = [item.true for item in checked]
        if sizes == true_counts:
            raise UserError(f"expected items with a false candidate in {self.name}, got none")
        images, rows = numbered(image for image, _ in chain.from_iterable(candidates))
        texts, columns = numbered(text for _, text in chain.from_iterable(candidates))
        pairs, positions = distinct_pairs(rows, columns)
        of_items = list(positions.split(sizes))
        _, clusters = numbered(item.cluster for item in checked)
        groups, members = numbered(item.group for item in checked)
        comparisons = [item.comparison for item in items]
        arrays = ChoiceItems(
            images=images,
            texts=texts,
            pairs=pairs,
            clusters=clusters,
            compared=tuple(comparisons),
            positions=pad_sequence(of_items, batch_first=True, padding_value=-1),
            true_counts=torch.tensor(true_counts),
            groups=groups,
            members=members,
            identical=identical,
            kept=tuple(checked),
        )
        if self.primary == self.keys[1] and not self._macro_groups(arrays):
            raise UserError(
                f"expected a group that counts in the reference convention of {self.name}, got "
                f"none among {len(checked)} items: use more items or the strict convention"
            )
        return arrays

    def checked(self, items: Sequence[ChoiceItem]) -> tuple[list[ChoiceItem], int]:
        """The items as the convention counts them, and how many have an identical candidate."""
        checked = []
        identical = 0
        for item in items:
            true = item.candidates[: item.true]
            false = item.candidates[item.true :]
            counts_alone = not false and self.reference_alone and not self.strict
            is_blank = not all(text.strip() for text in item.candidates)
            if is_blank or not (false or counts_alone):
                raise UserError(
                    f"expected a true caption and at least one other in {self.name}, none blank, "
                    f"got {str(item.candidates)[:60]} for {item.image.path.name}: "
                    "download the file again"
                )
            # Shuffles and swaps at times give the caption back, which is true then.
            if set(true) & set(false):
                identical += 1
                if self.strict:
                    false = tuple(text for text in false if text not in true)
                    item = replace(item, candidates=true + false)
            if false or counts_alone:
                checked.append(item)
        return checked, identical

    @override
    def run(self, score: PairScorer | MatrixFunction) -> Result:
        result = super().run(score)
        several = (self.items.true_counts > 1).nonzero()[:, 0]
        # A `Scorer` with a joint adapter has the methods of an `Embedder`, too, but no embeddings.
        is_dual = getattr(score, "embeds", True)
        if not len(several) or not is_dual or not isinstance(score, Embedder):
            return result
        accuracy = self._text_to_text(score, several)
        metrics = {**result.metrics, "text_to_text_accuracy": accuracy}
        return replace(result, metrics=metrics)

    def _text_to_text(self, score: Embedder, rows: Int[Tensor, "k"]) -> MetricValue:
        """How often the first two true captions are closer to each other than to a false one."""
        items = self.items
        assert items.pairs is not None
        positions = items.positions[rows]
        # Where an item has no further candidate some text is read, which `false` leaves out.
        columns = items.pairs[positions.clamp(min=0), 1]
        given = score.embed_texts(items.texts)
        embeddings = embedded(given, len(items.texts), self.name)
        texts = normalize(embeddings)[columns]
        candidate = torch.arange(positions.shape[1])
        comes_after_the_true = candidate >= items.true_counts[rows, None]
        false = comes_after_the_true & (positions >= 0)
        anchors = 1 if self.strict else 2
        wins = text_to_text_correct(texts, false, anchors)
        # By chance the true pair wins as often as each of its rivals.
        rivals = anchors * false.sum(dim=1).double()
        chance = (1 / (1 + rivals)).mean()
        return cluster_robust_mean(wins.double(), items.clusters[rows], float(chance))

    @override
    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        items = self.items
        # A column without a candidate gets some score, then -inf.
        positions = items.positions.clamp(min=0)
        values = scores.double()[positions]
        values[items.positions < 0] = -torch.inf
        chosen = _weakest_first(values, items.true_counts)
        credit = choice_credit(chosen, self._ties)
        counted = self.counted(values)
        macro = torch.where(counted, self._macro_members(items), -1)
        metrics = self._accuracies(credit, values, macro, counted)
        metrics |= self._ranks(chosen)
        if items.identical:
            metrics["identical_candidates"] = count(items.identical, len(credit))
        # The published script counts items without false candidates; readers say which.
        alone = items.sizes == items.true_counts
        if alone.any():
            metrics["without_negatives"] = count(int(alone.sum()), len(credit))

        # What does not count is neither right nor wrong in the gallery.
        right: list[bool | None] = (credit == 1).tolist()
        left_out = alone | ~counted
        for row in left_out.nonzero()[:, 0].tolist():
            right[row] = None
        examples = gallery(
            right,
            lambda row: int(items.clusters[row]),
            lambda row: self.example(values[row], row, right[row] is True),
            apart=True,
        )
        groups: tuple[int, ...] = ()
        if self.primary != self.keys[0]:
            groups = tuple(macro.tolist())
        return self.result(metrics, credit, items.clusters, groups=groups, examples=examples)

    def _accuracies(
        self,
        credit: Float[Tensor, "n"],
        values: Float[Tensor, "n m"],
        macro: Int[Tensor, "n"],
        counted: Bool[Tensor, "n"],
    ) -> dict[str, MetricValue]:
        items = self.items
        key, macro_key = self.keys
        chance = items.chance(self._ties)
        clusters = items.clusters

        def of(rows: Int[Tensor, "k"]) -> dict[str, MetricValue]:
            by_chance = float(chance[rows].mean())
            mean = cluster_robust_mean(credit[rows], clusters[rows], by_chance)
            return {key: mean} | self.more_metrics(values[rows], clusters[rows])

        metrics = of(counted.nonzero()[:, 0])
        if items.groups == ("",):
            return metrics
        if (macro >= 0).any():
            expected = macro_mean(chance, macro, clusters)
            metrics[macro_key] = macro_mean(credit, macro, clusters, expected.value)

        # The items of each group, side by side.
        group_sizes = items.group_sizes()
        by_group = torch.argsort(items.members, stable=True)
        group_parts = by_group.split(list(group_sizes.values()))
        rows_of = {}
        for group, rows in zip(items.groups, group_parts, strict=True):
            rows_of[group] = rows[counted[rows]]
        listed = self.reference_groups(group_sizes)
        # A group may have the name of a union; the group's own number stays then.
        named = {**self.unions(items.groups), **_each(items.groups)}
        for name, groups in named.items():
            parts = [rows_of[group] for group in groups if group in listed]
            # A group whose items do not count has no accuracy.
            if sum(map(len, parts)) == 0:
                continue
            for metric, value in of(torch.cat(parts)).items():
                metrics[f"{metric}/{name}"] = value
        return metrics

    @property
    def _ties(self) -> Ties:
        return "wrong" if self.strict else self.reference_ties

    def _ranks(self, chosen: Float[Tensor, "n m"]) -> dict[str, MetricValue]:
        items = self.items
        # Of two candidates the accuracy says it all; several true ones have no one rank.
        if chosen.shape[1] < 3 or (items.true_counts > 1).any():
            return {}
        sizes = items.sizes
        ranks = choice_ranks(chosen, self._ties)
        # Random ranks of m candidates are 1 to m, with the mean (m + 1) / 2.
        expected = float((sizes.double() + 1).mean()) / 2
        median = ranks.quantile(0.5).floor()
        metrics = {
            "mean_rank": cluster_robust_rank(ranks, items.clusters, expected),
            "median_rank": MetricValue(
                float(median), len(ranks), higher_is_better=False, unit="rank"
            ),
        }
        for k in self.recalls:
            hits = (ranks <= k).double()
            chance = recall_chance(sizes, k)
            metrics[f"recall@{k}"] = cluster_robust_mean(hits, items.clusters, chance)
        return metrics

    def _macro_members(self, items: ChoiceItems) -> Int[Tensor, "n"]:
        """Of each item the group or union it counts in for the macro accuracy, -1 for none."""
        unions = self.unions(items.groups) or _each(items.groups)
        macro = self._macro_groups(items)
        # -1 stays for groups that the published mean leaves out.
        numbers = dict.fromkeys(items.groups, -1)
        for union_number, union in enumerate(unions.values()):
            counted = macro.intersection(union)
            for group in counted:
                numbers[group] = union_number
        number_of_group = torch.tensor([numbers[group] for group in items.groups])
        return number_of_group[items.members]

    def _macro_groups(self, items: ChoiceItems) -> set[str]:
        if self.strict:
            return set(items.groups)
        return set(self.reference_groups(items.group_sizes())) & set(items.groups)

    def example(self, values: Float[Tensor, "m"], item: int, correct: bool) -> Example:
        """How the gallery shows an item, given the scores of its candidates."""
        # The two that decide: the true caption that scores least, the false one that scores most.
        shown = self.items.kept[item]
        weakest = int(values[: shown.true].argmin())
        rival = shown.true + int(values[shown.true :].argmax())
        if correct:
            first, second = weakest, rival
            verdict = "not"
        else:
            first, second = rival, weakest
            verdict = "true"
        query = f"{shown.candidates[first]} ({verdict}: {shown.candidates[second]})"
        score = float(values[first])
        return Example(query, (shown.image,), (score,), (correct,), correct)


def united(groups: Sequence[str], stems: Sequence[str], border: str) -> dict[str, list[str]]:
    """The groups that begin with each stem and a border, without stems of none.

    Example:
        >>> united(["add_att", "add_obj", "swap_att"], ["add", "replace", "swap"], "_")
        {'add': ['add_att', 'add_obj'], 'swap': ['swap_att']}
    """
    unions: dict[str, list[str]] = {}
    for stem in stems:
        members = [group for group in groups if group.startswith(stem + border)]
        if members:
            unions[stem] = members
    return unions


def _each(groups: Sequence[str]) -> dict[str, Collection[str]]:
    """Each group as a union of its own."""
    return {group: (group,) for group in groups}


def _weakest_first(values: Float[Tensor, "n m"], true: Int[Tensor, "n"]) -> Float[Tensor, "n m"]:
    """Puts the lowest score of the true candidates into column 0; no other of theirs remains."""
    column = torch.arange(values.shape[1])
    is_true = column < true[:, None]
    # +inf for the false ones leaves the minimum to the true ones.
    of_true = torch.where(is_true, values, torch.inf)
    weakest = of_true.amin(dim=1)
    reduced = torch.where(is_true, -torch.inf, values)
    reduced[:, 0] = weakest
    return reduced
