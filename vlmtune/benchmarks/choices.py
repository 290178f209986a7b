"""One image, several captions, one of them true: what ARO, CREPE and SugarCrepe have in common."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmtune.benchmarks.base import Benchmark, Convention, check_images
from vlmtune.benchmarks.choice_items import Choice, ChoiceItems, arrays
from vlmtune.benchmarks.repeats import Item
from vlmtune.benchmarks.sampling import check_limit, sample
from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import cluster_robust_mean, cluster_robust_rank, macro_mean
from vlmtune.metrics.multiple_choice import Ties, choice_credit, choice_ranks, recall_chance
from vlmtune.metrics.value import MetricValue
from vlmtune.report.result import Example, Result
from vlmtune.types import ImageRef

SHOWN = 4  # right and wrong choices each in the gallery


class Choices(Benchmark, ABC):
    """Images with candidate captions, one of which is true; the best scored one is chosen.

    A subclass writes `_read` and, where it differs, the hooks below it. It has these metrics:

    - `accuracy`: share of all items whose true caption is chosen (micro).
    - `macro_accuracy`: mean over groups of the accuracy within each, where there are groups. A
      subclass may unite groups (`_unions`); then it is the mean over the unions.
    - `accuracy/<group>` and `accuracy/<union>`.
    - `mean_rank` and `median_rank` (rounded down) of the true caption, where an item has more than
      two candidates, and `recall@<k>` for each k of `recalls`.
    - `identical_candidates`: how many items have a candidate that repeats the true one, word for
      word, as shuffles and swaps at times do; only where there are any.

    Conventions:

    - "strict": the true caption is chosen where it scores higher than every other; a tie loses. A
      candidate that repeats the true one is not false and is left out of its item, and the item
      where nothing else is left. Every other item and every group counts. The primary metric is
      `accuracy`.
    - "reference": what the published script does. Ties as `reference_ties` says, identical
      candidates kept, groups as `_reference_groups` says; the primary metric is
      `reference_primary`.

    Intervals resample images: items of one image file do not vary independently.

    Args:
        name: Name in reports.
        convention: "strict" or "reference".
        limit: Evaluate at most so many items, in the order of the file.
        seed: Draw them at random with this seed; None takes the first ones.

    Raises:
        UserError: `limit` is below 1, or the convention is unknown.
    """

    reference_ties: ClassVar[Ties] = "wrong"
    reference_primary: ClassVar[str] = "accuracy"
    recalls: ClassVar[tuple[int, ...]] = ()
    primary: str = "accuracy"

    def __init__(
        self,
        name: str,
        convention: Convention = "strict",
        limit: int | None = None,
        seed: int | None = 0,
    ) -> None:
        if convention not in ("strict", "reference"):
            raise UserError(
                f"expected the convention strict or reference for {name}, got {convention!r}: "
                "name one of them"
            )
        check_limit(limit)
        self.name = name
        self.convention: Convention = convention
        self.limit = limit
        self.seed = seed
        self.primary = self.reference_primary if convention == "reference" else "accuracy"
        self._items: ChoiceItems | None = None

    # -- what a subclass says ----------------------------------------------------------------------

    @abstractmethod
    def _read(self) -> list[Choice]:
        """Reads the annotation files; whether the images exist is checked afterwards.

        Raises:
            UserError: A file is missing or is not what it should be; says where it is to be had.
        """

    def _unions(self, groups: Sequence[str]) -> Mapping[str, Collection[str]]:
        """Groups united under one name, for an accuracy each and for `macro_accuracy`."""
        return {}

    def _reference_groups(self, sizes: Mapping[str, int]) -> Collection[str]:
        """The groups of the published macro accuracy; also those listed one by one.

        Args:
            sizes: Number of items of each group.
        """
        return sizes.keys()

    # -- the contract ------------------------------------------------------------------------------

    def load(self) -> None:
        """Reads the files and finds the images; calling it again does nothing."""
        if self._items is not None:
            return
        read = self._read()
        drawn = [read[i] for i in sample([""] * len(read), self.limit, self.seed)]
        choices, identical = self._checked(drawn)
        if not choices:
            raise UserError(
                f"expected items in the files of {self.name}, got none: download them again from "
                f"{self.source or 'their source'}"
            )
        items = arrays(choices, drawn, identical)
        check_images(items.images, self)
        if self.primary == "macro_accuracy" and not self._macro_groups(items):
            raise UserError(
                f"expected a group that counts in the reference convention of {self.name}, got "
                f"none among {len(choices)} items: use more items or the strict convention"
            )
        self._items = items

    def images(self) -> tuple[ImageRef, ...]:
        """The distinct images, in the order of the file."""
        return self._loaded().images

    def texts(self) -> tuple[str, ...]:
        """The distinct captions, in the order of the file."""
        return self._loaded().texts

    def pairs(self) -> Int[Tensor, "P 2"]:
        """Each image with the candidates of its items, sorted by image."""
        return self._loaded().pairs

    def compared_items(self) -> tuple[Item, ...]:
        """The items as the files have them, with identical candidates."""
        drawn = self._loaded().drawn
        return tuple(Item((one.image,), one.candidates[:1], one.candidates[1:]) for one in drawn)

    def truth(self) -> Bool[Tensor, "P"]:
        """The true caption of some item of the image."""
        items = self._loaded()
        truth = torch.zeros(len(items.pairs), dtype=torch.bool)
        truth[items.places[:, 0]] = True
        return truth

    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        """Chooses the best candidate of each item."""
        items = self._loaded()
        values = scores.detach().cpu().double()[items.places.clamp(min=0)]
        values[items.places < 0] = -torch.inf
        ties = "wrong" if self.convention == "strict" else self.reference_ties
        credit = choice_credit(values, ties)
        metrics = self._accuracies(credit, items) | self._ranks(values, ties, items)
        if items.identical:
            metrics["identical_candidates"] = MetricValue(
                float(items.identical), len(credit), higher_is_better=False, unit="count"
            )
        return Result(
            benchmark=self.name,
            version=self.version,
            primary=self.primary,
            metrics=metrics,
            examples=_examples(values, credit, items),
            citation=self.citation,
            convention=self.convention,
            outcomes=tuple(credit.tolist()),
            clusters=tuple(items.clusters.tolist()),
            groups=() if self.primary == "accuracy" else tuple(self._united(items).tolist()),
        )

    # -- metrics -----------------------------------------------------------------------------------

    def _accuracies(self, credit: Float[Tensor, "n"], items: ChoiceItems) -> dict[str, MetricValue]:
        chance, clusters = 1 / items.sizes.double(), items.clusters
        metrics = {"accuracy": cluster_robust_mean(credit, clusters, float(chance.mean()))}
        if items.groups == ("",):
            return metrics
        united, listed = self._united(items), self._reference_groups(items.group_sizes())
        if (united >= 0).any():
            expected = macro_mean(chance, united, clusters).value
            metrics["macro_accuracy"] = macro_mean(credit, united, clusters, expected)
        named = {group: (group,) for group in items.groups}
        named = dict(self._unions(items.groups)) | named
        rows_of = items.rows_of_groups()
        for name, groups in named.items():
            parts = [rows_of[group] for group in groups if group in rows_of and group in listed]
            if parts:
                rows = torch.cat(parts)
                metrics[f"accuracy/{name}"] = cluster_robust_mean(
                    credit[rows], clusters[rows], float(chance[rows].mean())
                )
        return metrics

    def _ranks(
        self, values: Float[Tensor, "n m"], ties: Ties, items: ChoiceItems
    ) -> dict[str, MetricValue]:
        if values.shape[1] < 3:
            return {}
        sizes, ranks = items.sizes, choice_ranks(values, ties)
        expected = float((sizes.double() + 1).mean()) / 2
        metrics = {"mean_rank": cluster_robust_rank(ranks, items.clusters, expected)}
        middle = float(ranks.quantile(0.5).floor())
        metrics["median_rank"] = MetricValue(
            middle, len(ranks), higher_is_better=False, unit="rank"
        )
        for k in self.recalls:
            hits = (ranks <= k).double()
            metrics[f"recall@{k}"] = cluster_robust_mean(
                hits, items.clusters, recall_chance(sizes, k)
            )
        return metrics

    def _united(self, items: ChoiceItems) -> Int[Tensor, "n"]:
        """Of each item the group or union it counts in for `macro_accuracy`, -1 for none."""
        unions = self._unions(items.groups) or {group: (group,) for group in items.groups}
        macro = self._macro_groups(items)
        number = {g: i for i, union in enumerate(unions.values()) for g in union if g in macro}
        return torch.tensor([number.get(group, -1) for group in items.groups])[items.members]

    def _macro_groups(self, items: ChoiceItems) -> Collection[str]:
        if self.convention == "strict":
            return items.groups
        return set(self._reference_groups(items.group_sizes())) & set(items.groups)

    def _loaded(self) -> ChoiceItems:
        self.load()
        assert self._items is not None
        return self._items

    def _checked(self, choices: Sequence[Choice]) -> tuple[list[Choice], int]:
        """The items as the convention has them, and how many have an identical candidate."""
        kept, identical = [], 0
        for choice in choices:
            true, *others = choice.candidates
            if not others or not all(text.strip() for text in choice.candidates):
                raise UserError(
                    f"expected a true caption and at least one other in {self.name}, none blank, "
                    f"got {str(choice.candidates)[:60]} for {choice.image.path.name}: "
                    "download the file again"
                )
            if true in others:
                identical += 1
                if self.convention == "strict":
                    others = [text for text in others if text != true]
                    choice = replace(choice, candidates=(true, *others))
            if others:
                kept.append(choice)
        return kept, identical


def _examples(
    values: Float[Tensor, "n m"], credit: Float[Tensor, "n"], items: ChoiceItems
) -> tuple[Example, ...]:
    """The first right and the first wrong choices, each of another image file."""
    shown: dict[bool, list[Example]] = {True: [], False: []}
    files: set[int] = set()
    rival = values[:, 1:].argmax(dim=1) + 1
    for correct, kind in shown.items():
        for i in ((credit == 1) == correct).nonzero()[:, 0].tolist():
            if len(kind) == SHOWN:
                break
            if (file := int(items.clusters[i])) in files:
                continue
            files.add(file)
            first, second = (0, int(rival[i])) if correct else (int(rival[i]), 0)
            row = int(items.pairs[items.places[i, 0], 0])
            texts = [items.texts[int(items.pairs[items.places[i, c], 1])] for c in (first, second)]
            kind.append(
                Example(
                    query=f"{texts[0]} ({'not' if correct else 'true'}: {texts[1]})",
                    images=(items.images[row],),
                    scores=(float(values[i, first]),),
                    true=(correct,),
                    correct=correct,
                )
            )
    return (*shown[True], *shown[False])
