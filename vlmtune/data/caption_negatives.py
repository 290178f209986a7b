"""Adds hard-negative captions, made by `language.rewriting`, to the groups that `stream` reads.

In: groups. Out: groups with false texts. Never: a caption that is known to be true.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from pydantic import PositiveInt

from vlmtune.config import Configured
from vlmtune.language.canonical import canonical
from vlmtune.types import Group

if TYPE_CHECKING:  # a run without such negatives never loads the tagger and its word lists
    from vlmtune.language.rewriting import Rewriter


class CaptionNegatives(Configured):
    """Adds rewritten captions to groups, as texts that are false of the caption's images.

    They are a function of seed, epoch and group. A rewritten caption known to be true of an image
    of the group is dropped. One that is a caption of another image of the batch becomes that text,
    and is true there.

    In a group of several images a rewritten caption belongs to the images of its original. Where
    groups are pairs that differ by a relation, leave out the rule that reverses it: its caption is
    true of the other image.

    Args:
        rewriter: Rewrites captions. If its rules need words, it learns them from the training
            captions.
        count: How many for each caption, at most.
    """

    def __init__(self, rewriter: "Rewriter", count: PositiveInt = 1) -> None:
        self.rewriter = rewriter
        self.count = count

    def prepare(self, captions: Callable[[], Iterable[str]]) -> None:
        """Learns words if the rewriter needs any, and only then calls `captions`."""
        if self.rewriter.needs_words:
            self.rewriter.learn(captions())

    def added(
        self, groups: Sequence[Group], seed: int, epoch: int, whole: Sequence[Group] = ()
    ) -> list[Group]:
        """Returns the groups of a batch with false texts added, others in each epoch.

        `whole` are the same groups with the captions that were not drawn: those are true, too.
        """
        # A rewritten caption may be true of another image of the batch: by its words it is found.
        texts: dict[str, str] = {}
        for group in whole or groups:
            texts |= zip(group.text_ids, group.texts, strict=True)
        ids: dict[str, str] = {}
        for text_id, text in texts.items():
            ids.setdefault(canonical(text), text_id)
        changed = []
        for group in groups:
            key = f"{seed}/{epoch}/{group.key}"
            changed.append(self._added(group, texts, ids, key))
        return changed

    def _added(self, group: Group, texts: dict[str, str], ids: dict[str, str], key: str) -> Group:
        false_texts, originals = self._rewritten(group, texts, ids, key)
        truth = group.truth
        same_group = group.same_group
        if same_group is None:
            same_group = torch.ones_like(truth)

        # A negative is of the group of its original, for the images that the original is true of.
        columns = torch.tensor(originals, dtype=torch.long)
        same_group = torch.cat([same_group, truth[:, columns]], dim=1)
        false = torch.zeros(len(truth), len(false_texts), dtype=torch.bool)

        # A rewritten caption of another image may be, by its words, true of this image.
        true_ids = []
        for names, row in zip(group.true_ids, truth.tolist(), strict=True):
            true_texts = itertools.compress(group.texts, row)
            true_ids.append(names.union(true_texts))
        return replace(
            group,
            text_ids=(*group.text_ids, *false_texts),
            texts=(*group.texts, *false_texts.values()),
            truth=torch.cat([truth, false], dim=1),
            same_group=same_group,
            true_ids=tuple(true_ids),
        )

    def _rewritten(
        self, group: Group, texts: dict[str, str], ids: dict[str, str], key: str
    ) -> tuple[dict[str, str], list[int]]:
        """The false texts by id, and the column that each was made from."""
        # Truth is known by id; ids that are captions tell of other batches too.
        true: set[str] = set().union(*group.true_ids)
        avoid = [*group.texts, *true]
        avoid += [texts[name] for name in true if name in texts]
        is_true = group.truth.any(dim=0).tolist()
        rewritten: dict[str, str] = {}
        originals: dict[str, int] = {}
        for column, caption in enumerate(group.texts):
            if not is_true[column]:
                continue
            false_texts = self.rewriter.negatives(caption, avoid, self.count, f"{key}/{column}")
            for text in false_texts:
                avoid.append(text)  # no second one of the same words
                text_id = ids.get(canonical(text), text)
                rewritten[text_id] = texts.get(text_id, text)
                originals[text_id] = column
        return rewritten, list(originals.values())
