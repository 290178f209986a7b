"""Keeps or leaves out the hard negatives of the records (`data.hard_negatives` of a fit).

In: groups. Out: groups with fewer images and texts. Never: an image without its true texts.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from vlmtune.types import Group

HardNegatives = Literal["all", "captions", "images", "none"]


def with_hard_negatives(
    groups: Sequence[Group], kept: HardNegatives, seed: int, epoch: int
) -> list[Group]:
    """Returns each group with its hard negatives of one kind, so that experiments compare kinds.

    A hard-negative caption is false of every image of its group. A hard-negative image is a second
    image of the group, with its true texts. What is left of a group by `kept`:

    - "all": everything.
    - "images": all images and what is true of them; captions that are false of all are left out.
    - "captions": one image and all texts. Those of the other images become hard-negative captions.
    - "none": one image and what is true of it.

    The one image is drawn anew in each epoch, as a function of seed, epoch and group.

    Example:
        >>> import torch
        >>> truth = torch.eye(2, 3, dtype=torch.bool)
        >>> texts, true = ("a", "b", "c"), (frozenset("a"), frozenset("b"))
        >>> group = Group("g", ("i", "j"), texts, texts, truth, true)
        >>> [with_hard_negatives([group], kept, 0, 1)[0].texts for kept in ("images", "none")]
        [('a', 'b'), ('b',)]
    """
    if kept == "all":
        return list(groups)
    reduced = []
    for group in groups:
        rng = random.Random(f"{seed}/{epoch}/{group.key}/{group.image_ids}")
        reduced.append(_reduced(group, kept, rng))
    return reduced


def _reduced(group: Group, kept: HardNegatives, rng: random.Random) -> Group:
    rows = list(range(len(group.image_ids)))
    if kept != "images":
        rows = [rng.choice(rows)]  # another one in each epoch
    columns = list(range(len(group.text_ids)))
    if kept != "captions":
        is_true = group.truth[rows].any(dim=0)
        columns = is_true.nonzero().flatten().tolist()
    return part_of(group, rows, columns)


def part_of(group: Group, rows: list[int], columns: list[int]) -> Group:
    """The group with some of its images and texts; `true_ids` still lists the other texts."""
    images = group.images
    if images is not None:
        images = tuple(images[row] for row in rows)
    same_group = group.same_group
    if same_group is not None:
        same_group = same_group[rows][:, columns]
    return replace(
        group,
        image_ids=tuple(group.image_ids[row] for row in rows),
        text_ids=tuple(group.text_ids[column] for column in columns),
        texts=tuple(group.texts[column] for column in columns),
        truth=group.truth[rows][:, columns],
        true_ids=tuple(group.true_ids[row] for row in rows),
        images=images,
        same_group=same_group,
    )
