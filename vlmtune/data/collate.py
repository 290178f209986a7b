"""Groups to a batch: images and texts side by side, and every pair known to be true.

In: groups. Out: one `Batch`. Never: a file or a random number.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vlmtune.errors import UserError
from vlmtune.types import Batch, Group, Targets


def collate(
    groups: Sequence[Group],
    preprocess: Callable[[Any], Tensor] | None = None,
    damaged: Sequence[str] = (),
) -> Batch:
    """Flattens groups into one batch.

    Each image of each group is a row; each text id is one column. Text j is true of
    image i if the corpus lists it among the image's captions, in any group. `preprocess` turns a
    PIL image into pixel values (3, height, width); without it images are left out, as their
    features are stored. `damaged` holds lines about skipped records.

    Example:
        >>> truth = torch.ones(1, 1, dtype=torch.bool)
        >>> a = Group("a", ("i",), ("t",), ("a cat",), truth, (frozenset({"t", "u"}),), True)
        >>> b = Group("b", ("j",), ("u",), ("a pet",), truth, (frozenset({"u"}),))
        >>> collate([a, b]).targets.truth.int().tolist()
        [[1, 1], [0, 1]]
    """
    texts = _texts(groups)
    column = {text_id: number for number, text_id in enumerate(texts)}
    image_ids: list[str] = []
    true_ids: list[frozenset[str]] = []
    exhaustive: list[bool] = []
    images: list[Any] = []
    for group in groups:
        image_ids += group.image_ids  # an image of two groups is two rows
        true_ids += group.true_ids
        exhaustive += [group.exhaustive] * len(group.image_ids)
        images += group.images or ()

    # One (N, M) matrix each; an image's row gathers what any group knows of it.
    flags = torch.zeros(4, len(image_ids), len(texts), dtype=torch.bool)
    truth, same_group, known, mined = flags.unbind()
    row = 0  # of the image
    for group in groups:
        group_columns = [column[text_id] for text_id in group.text_ids]
        mined_columns = _columns(group.mined_negatives or (), column)
        for i, true in enumerate(group.true_ids):
            truth[row, _columns(true, column)] = True
            in_group = True if group.same_group is None else group.same_group[i]
            same_group[row, group_columns] = in_group
            # In a corpus that is not exhaustive only a group knows what is false of its images.
            known[row] = same_group[row] | group.exhaustive
            mined[row, mined_columns] = True
            row += 1

    # Without mined groups there is no matrix of mined negatives, not one of zeros.
    mined_negatives = None
    if any(group.mined_negatives is not None for group in groups):
        mined_negatives = mined & ~truth
    sizes = torch.tensor([len(group.image_ids) for group in groups], dtype=torch.long)
    pixels = None if preprocess is None else _pixels(images, preprocess)
    return Batch(
        keys=tuple(group.key for group in groups),
        image_ids=tuple(image_ids),
        texts=tuple(texts.values()),
        targets=Targets(truth, known, same_group, mined_negatives),
        image_group=torch.repeat_interleave(torch.arange(len(groups)), sizes),
        pixels=pixels,
        damaged=tuple(damaged),
        text_ids=tuple(texts),
        true_ids=tuple(true_ids),
        exhaustive=tuple(exhaustive),
    )


def _columns(text_ids: Iterable[str], column: Mapping[str, int]) -> list[int]:
    """The columns of the texts that the batch has."""
    return [column[text_id] for text_id in text_ids if text_id in column]


def _pixels(images: Sequence[Any], preprocess: Callable[[Any], Tensor]) -> Tensor:
    """Pixels (n, 3, height, width); each image is freed before the next one is preprocessed."""
    first, *others = images
    pixels_of_first = preprocess(first)
    # One block for all: a list of tensors would be held beside the block that `stack` makes of it.
    pixels = pixels_of_first.expand(len(images), *pixels_of_first.shape).clone()
    for row, image in zip(pixels[1:], others, strict=True):
        row.copy_(preprocess(image))
    return pixels


def _texts(groups: Sequence[Group]) -> dict[str, str]:
    """The caption of each text id, in order of appearance."""
    texts: dict[str, str] = {}
    for group in groups:
        for text_id, text in zip(group.text_ids, group.texts, strict=True):
            if texts.setdefault(text_id, text) != text:
                raise UserError(
                    f"expected one caption for text id {text_id!r}, got {texts[text_id]!r} and "
                    f"{text!r} (record {group.key}): text ids must be unique across sets"
                )
    return texts
