"""Sets of four in the multiple-choice rule: the same objects on both sides of two axes.

In: `SetItem`s from a reader, also among others. Out: accuracy over whole pairs and sets, and over
matchings of the images of a set with their captions. Never: files.
"""

from collections import defaultdict
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from vlmtune.benchmarks.items import numbered
from vlmtune.benchmarks.rules.choice_items import ChoiceItem
from vlmtune.benchmarks.rules.multiple_choice import MultipleChoice
from vlmtune.metrics.cluster_robust import cluster_robust_mean
from vlmtune.metrics.paired_accuracy import matching_chance, matching_correct
from vlmtune.results.result import Result

SET = 4  # items
Together = tuple[str, str]  # the objects of a set or pair, and the axis of a pair


@dataclass(frozen=True)
class SetItem(ChoiceItem):
    """An item of a set: the objects that the set shows, and the axis that its pair is on."""

    objects: str = ""
    axis: str = ""


class ChoiceSets(MultipleChoice):
    """Multiple choice with further metrics of each group that has whole pairs or sets.

    - `pair_accuracy/<group>`: both items of a pair are right, of one set and axis.
    - `set_accuracy/<group>`: all four items of a set are right.
    - `group_match/<group>`: the true matching of the four images of a set with their four captions
      has the highest total score (`matching_correct`); chance 1/24, so it compares with no set
      accuracy. It needs sets whose items have the same captions.

    Pairs and sets that `limit` has cut are left out. Intervals count sets.
    """

    @override
    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        result = super().evaluate(scores)
        values = scores.double()
        right = torch.tensor(result.outcomes, dtype=torch.float64)
        chance = self.items.chance()
        # In one order for every run, so that reports can be laid side by side.
        for group in sorted(self.items.groups):
            pairs = self._together(group, SET // 2)
            sets = self._together(group, SET)
            for name, together in (("pair", pairs), ("set", sets)):
                if not together:
                    continue
                rows = torch.tensor(list(together.values()))
                # Pairs of one set show the same objects.
                _, clusters = numbered(objects for objects, _ in together)
                by_chance = chance[rows].prod(dim=1)
                all_right = right[rows].amin(dim=1)
                metric = cluster_robust_mean(all_right, clusters, float(by_chance.mean()))
                result.metrics[f"{name}_accuracy/{group}"] = metric
            matchings = [self._matching(rows) for rows in sets.values()]
            whole = [positions for positions in matchings if positions]
            if whole:
                scores_of_sets = values[torch.tensor(whole)]
                matched = matching_correct(scores_of_sets).double()
                clusters = torch.arange(len(whole))
                metric = cluster_robust_mean(matched, clusters, matching_chance(SET))
                result.metrics[f"group_match/{group}"] = metric
        return result

    def _matching(self, rows: list[int]) -> list[list[int]]:
        """Positions in `pairs` of each image of a set with each caption; [] if captions differ."""
        candidates = [self.items.kept[row].candidates for row in rows]
        true = [captions[0] for captions in candidates]
        positions = []
        for row, captions in zip(rows, candidates, strict=True):
            if sorted(captions) != sorted(true):
                return []
            columns = [captions.index(caption) for caption in true]
            positions.append(self.items.positions[row, columns].tolist())
        return positions

    def _together(self, group: str, size: int) -> dict[Together, list[int]]:
        """The items of each whole pair (`size` 2) or set (4) of a group."""
        rows_of: dict[Together, list[int]] = defaultdict(list)
        for row, item in enumerate(self.items.kept):
            if not isinstance(item, SetItem) or item.group != group:
                continue
            # A set has both axes, a pair one of them.
            axis = "" if size == SET else item.axis
            rows_of[item.objects, axis].append(row)
        # `limit` may have left a part of a pair or set, which says nothing of the whole.
        return {key: rows for key, rows in rows_of.items() if len(rows) == size}
