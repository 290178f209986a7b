"""The suite of ARO, SugarCrepe and CREPE by its published counts: what it costs, and one like it.

Bound of the first run by multiplications in millions: the image tower takes 4,370 an image, the
text tower 38 a token. `PARTS` has the published counts; tokens are the words of a caption with
start and end: assumed are 7 words for ARO's templates ("the horse is eating the grass"), 11 for
COCO, 12 for Flickr30K, 11 for SugarCrepe and 18 for CREPE. Crops of CREPE's three types and their
true captions overlap: about 17,000 and 215,000 are distinct. Item by item that is

    129,921 images x 4,370 + 508,732 captions x 77 x 38  =  2.06e9
     77,245 images x 4,370 + 7.05 million tokens x 38    =  0.61e9   3.4x; 3.8x with 12 tokens each.

Bound of the MM-Adapter over ARO: 255,420 pairs, and 58,685 images and 222,405 captions once each. A
pair of 63 tokens takes 156 in the adapter (scripts/bench/joint_scoring.py); here, with captions a
little shorter, 150 are taken for all. 255,420 x (4,370 + 77 x 38 + 150) over the sum of what is
done once gives 4.8x on a first run, which batches, being faster than single rows, can exceed; over
the store 150 a pair are left: 50x. Pair by pair the adapter gets cut captions, too, in favour of
that side.

`make` writes items in the proportions of those counts, of random images and captions.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vlmtune.types import ImageRef

WORDS = ("two", "small", "red", "cubes", "on", "the", "left", "of", "a", "blue", "glass", "sphere")
CONTEXT = 77
IMAGE, TOKEN, PAIR = 4370, 38, 150  # millions of multiplications


@dataclass(frozen=True)
class Part:
    """One benchmark of the suite, by its counts.

    Attributes:
        name: Its name.
        items: Items, each with an image of its own to the published script.
        files: Image files.
        crops: Distinct images or crops.
        captions: Captions of an item.
        distinct: Distinct captions.
        words: Words of a caption.
        batch: Items that the published script takes at a time.
    """

    name: str
    items: int
    files: int
    crops: int
    captions: int
    distinct: int
    words: int
    batch: int

    def scaled(self, scale: float) -> "Part":
        """The same proportions; at least one of each, and distinct captions in an item."""

        def some(count: int) -> int:
            return max(1, round(scale * count))

        items, crops = some(self.items), min(some(self.items), some(self.crops))
        slots = items * self.captions
        return replace(
            self,
            items=items,
            files=min(some(self.files), crops),
            crops=crops,
            distinct=min(slots, max(self.captions, some(self.distinct))),
        )


ARO = (
    Part("VG-Relation", 23_937, 5_316, 23_937, 2, 26_706, 7, 32),
    Part("VG-Attribution", 28_748, 4_517, 28_748, 2, 52_146, 7, 32),
    Part("COCO-Order", 25_010, 5_000, 5_000, 5, 119_661, 11, 32),
    Part("Flickr30k-Order", 5_000, 1_000, 1_000, 5, 23_892, 12, 32),
)
PARTS = (
    *ARO,
    Part("SugarCrepe", 7_511, 1_560, 1_560, 2, 11_844, 11, 1),
    Part("CREPE", 39_715, 7_379, 17_000, 6, 215_000, 18, 1),
)


def bound(parts: Sequence[Part], tokens: int | None = None) -> float:
    """Multiplications item by item over those of everything once; `tokens` for all captions."""
    each = sum(p.items * (IMAGE + p.captions * CONTEXT * TOKEN) for p in parts)
    once = sum(p.crops * IMAGE + p.distinct * (tokens or p.words + 2) * TOKEN for p in parts)
    return each / once


def joint_bounds(parts: Sequence[Part]) -> tuple[float, float]:
    """Multiplications pair by pair over those of a first run, and over those from the store."""
    pairs = sum(p.items * p.captions for p in parts)
    once = sum(p.crops * IMAGE + p.distinct * (p.words + 2) * TOKEN for p in parts)
    each = pairs * (IMAGE + CONTEXT * TOKEN + PAIR)
    return each / (once + pairs * PAIR), each / (pairs * PAIR)


@dataclass(frozen=True)
class Items:
    """The items of a part: item i is image `owner[i]` with the captions `texts[chosen[i]]`."""

    part: Part
    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]
    owner: Tensor
    chosen: Tensor

    def pairs(self) -> Tensor:
        """Rows of images and of texts, the captions of an item one after the other."""
        columns = self.chosen.flatten()
        return torch.stack([self.owner.repeat_interleave(self.part.captions), columns], dim=1)


def make(part: Part, folder: Path, seed: int) -> Items:
    """Writes random images into `folder` and makes captions of random words."""
    chance = random.Random(seed)
    folder.mkdir()
    noise = np.random.default_rng(seed)
    for number in range(part.files):
        content = noise.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(content).save(folder / f"{number}.png")
    images = []
    for number in range(part.crops):
        turn = number // part.files
        box = None if part.crops == part.files else (turn % 16, turn // 16 % 16, 40, 40)
        images.append(ImageRef(folder / f"{number % part.files}.png", box))
    texts: dict[str, None] = {}
    while len(texts) < part.distinct:
        # The number of words varies by half either way, as lengths of captions do.
        words = round(part.words * chance.uniform(0.5, 1.5))
        texts[" ".join(chance.choices(WORDS, k=words))] = None
    slots = torch.arange(part.items * part.captions) % part.distinct
    chosen = slots.reshape(part.items, part.captions)
    return Items(part, tuple(images), tuple(texts), torch.arange(part.items) % part.crops, chosen)
