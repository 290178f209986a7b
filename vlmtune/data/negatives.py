"""Hard-negative captions made during training: false texts added to each group."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from vlmtune.config import Configured
from vlmtune.errors import UserError
from vlmtune.language.rewriting import Rewriter
from vlmtune.language.words import canonical
from vlmtune.types import Group


class CaptionNegatives(Configured):
    """Adds rewritten captions to groups, as texts that are false of the images the caption is of.

    They are a function of seed, epoch and group. A rewritten caption that is known to be true of an
    image of the group is not taken; one that is known of another image of the batch is that very
    text, and true there.

    In a group of several images a rewritten caption belongs to the images its original is true of.
    It may be true of another image of the group in other words: where groups are pairs that differ
    by a relation, leave out the rule that reverses it.

    Args:
        rewriter: Rewrites captions. Where its rules need words it learns them from the training
            captions.
        count: How many for each caption, at most.

    Raises:
        UserError: `count` is below 1.
    """

    def __init__(self, rewriter: Rewriter, count: int = 1) -> None:
        if count < 1:
            raise UserError(
                f"expected a count of negatives of at least 1, got {count}: raise it or drop them"
            )
        self.rewriter, self.count = rewriter, count

    def prepare(self, captions: Callable[[], Iterable[str]]) -> None:
        """Learns words, where the rewriter needs some; asks for the captions only then."""
        if self.rewriter.needs_words:
            self.rewriter.learn(captions())

    def added(self, groups: Sequence[Group], seed: int, epoch: int) -> list[Group]:
        """Returns the groups of a batch with false texts added.

        Args:
            groups: The groups.
            seed: Seed of the training data.
            epoch: Number of the epoch; each has other negatives.
        """
        texts = {i: t for group in groups for i, t in zip(group.text_ids, group.texts, strict=True)}
        ids: dict[str, str] = {}
        for text_id, text in texts.items():
            ids.setdefault(canonical(text), text_id)
        return [self._added(group, texts, ids, f"{seed}/{epoch}/{group.key}") for group in groups]

    def _added(self, group: Group, texts: dict[str, str], ids: dict[str, str], key: str) -> Group:
        # What is true is known by id; where ids are captions themselves, also of other batches.
        true = {name for names in group.true_ids for name in names}
        avoid = [*group.texts, *true, *(texts[name] for name in true if name in texts)]
        found: dict[str, tuple[str, int]] = {}  # id -> text, and the caption it was made from
        for j, caption in enumerate(group.texts):
            if not group.truth[:, j].any():
                continue
            for text in self.rewriter.negatives(caption, avoid, self.count, f"{key}/{j}"):
                avoid.append(text)
                text_id = ids.get(canonical(text), text)
                found[text_id] = texts.get(text_id, text), j
        return _with(group, found)


def _with(group: Group, found: dict[str, tuple[str, int]]) -> Group:
    sources = torch.tensor([j for _, j in found.values()], dtype=torch.long)
    own = torch.ones_like(group.truth) if group.same_group is None else group.same_group
    true = zip(group.true_ids, group.truth.tolist(), strict=True)
    return replace(
        group,
        text_ids=(*group.text_ids, *found),
        texts=(*group.texts, *(text for text, _ in found.values())),
        truth=torch.cat([group.truth, torch.zeros(len(own), len(found), dtype=torch.bool)], dim=1),
        same_group=torch.cat([own, group.truth[:, sources]], dim=1),
        # By its words too, so that a caption made from another image's is known to be true here.
        true_ids=tuple(
            names | {text for text, yes in zip(group.texts, row, strict=True) if yes}
            for names, row in true
        ),
    )
