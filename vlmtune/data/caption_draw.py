"""Draws some of an image's true captions anew in each epoch (`data.captions` of a fit).

In: groups. Out: groups with fewer true texts. Never: a false text left out, or truth forgotten.
"""

import random
from collections.abc import Sequence

from vlmtune.data.hard_negatives import part_of
from vlmtune.types import Group


def draw_captions(groups: Sequence[Group], count: int, seed: int, epoch: int) -> list[Group]:
    r"""Returns each group with `count` of the true captions of each image, drawn at random.

    Each image draws uniformly, without replacement, from the $m$ captions of the group that are
    true of it; all stay if $m \le$ `count`. The draw is a function of seed, epoch and group. A
    caption that is false of every image of the group, a hard negative, stays. So does the caption
    that another image of the group has drawn: a pair that differs by a relation or by swapped
    attributes stays a pair. `true_ids` still lists what was not drawn.

    PUG:AR4T trains on the caption or the alternative caption of a scene at random (Bordes et al.
    2023, appendix B.5), FIBER on one of an image's five captions, each with `count` 1.

    Example:
        >>> import torch
        >>> truth = torch.tensor([[True, True, False]])
        >>> ids = ("a", "b", "c")
        >>> group = Group("g", ("i",), ids, ("a cat", "a pet", "a dog"), truth, (frozenset("ab"),))
        >>> [draw_captions([group], 1, 0, epoch)[0].texts for epoch in (0, 2)]
        [('a cat', 'a dog'), ('a pet', 'a dog')]
    """
    sampled = []
    for group in groups:
        rng = random.Random(f"{seed}/{epoch}/{group.key}/{group.image_ids}")
        sampled.append(_sampled(group, count, rng))
    return sampled


def _sampled(group: Group, count: int, rng: random.Random) -> Group:
    hard = ~group.truth.any(dim=0)  # a hard negative is false of every image, and stays
    kept = set(hard.nonzero().flatten().tolist())
    for row in group.truth:
        true = row.nonzero().flatten().tolist()
        kept.update(rng.sample(true, min(count, len(true))))
    every_row = list(range(len(group.image_ids)))
    return part_of(group, every_row, sorted(kept))
