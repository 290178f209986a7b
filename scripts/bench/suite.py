"""Measures the suite of ARO, SugarCrepe and CREPE on ViT-B/32 against item-by-item evaluation.

Published scripts take one item after the other, each caption padded to 77 tokens; `Scorer` encodes
each image, crop and caption once. Required: 3x for the first run, 20x for the next adapter, 5x for
the MM-Adapter on ARO's pairs, with the same scores. Weights and images are random, `--scale` of the
published counts (bounds: docs/costs.md).

    python -m scripts.bench.suite [--scale 0.0025] [--joint-scale 0.0005]
"""

import random
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from scripts.bench.harness import (
    CONTEXT,
    DEVICE,
    IMAGE,
    TOKEN,
    WORDS,
    encode_padded,
    figure,
    options,
    random_clip,
    timed,
)
from vlmtune.adapters.base import Adapter
from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.adapters.mm_adapter import MMAdapter
from vlmtune.adapters.zero_shot import ZeroShot
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.evaluation.scorer import Scorer
from vlmtune.types import ImageRef

PAIR = 150  # millions of multiplications in the adapter
# At the published counts a batch of 256 holds captions of one length; at these it would hold all.
BATCH = 16


class Part(NamedTuple):
    """One benchmark of the suite, by its counts; an item is an image with its captions."""

    name: str
    items: int
    files: int
    crops: int  # distinct images or crops of them
    captions: int  # of an item
    distinct: int  # captions of the benchmark
    words: int  # of a caption
    batch: int  # items that the published script takes at a time

    def scaled(self, scale: float) -> "Part":
        """The same proportions; at least one of each, and distinct captions in an item."""
        counts = self.items, self.files, self.crops, self.distinct
        items, files, crops, distinct = (max(1, round(scale * n)) for n in counts)
        crops = min(items, crops)
        distinct = min(items * self.captions, max(self.captions, distinct))
        return self._replace(items=items, files=min(files, crops), crops=crops, distinct=distinct)

    def by_pair(self) -> "Part":
        """The same pairs, each an item of its own."""
        return self._replace(items=self.items * self.captions, captions=1, batch=1)


ARO = (
    Part("VG-Relation", 23_937, 5_316, 23_937, 2, 26_706, 7, 32),
    Part("VG-Attribution", 28_748, 4_517, 28_748, 2, 52_146, 7, 32),
    Part("COCO-Order", 25_010, 5_000, 5_000, 5, 119_661, 11, 32),
    Part("Flickr30k-Order", 5_000, 1_000, 1_000, 5, 23_892, 12, 32),
)
PARTS = (*ARO, Part("SugarCrepe", 7_511, 1_560, 1_560, 2, 11_844, 11, 1),
         Part("CREPE", 39_715, 7_379, 17_000, 6, 215_000, 18, 1))  # fmt: skip


def bound(
    parts: Sequence[Part], tokens: int | None = None, pair: int = 0, stored: bool = False
) -> float:
    """Multiplications item by item over those of encoding everything once.

    A caption has `tokens`, by default its words, a start and an end; `pair` are multiplications of
    the adapter for a pair; `stored` features are not encoded.
    """
    each = sum(p.items * (IMAGE + p.captions * (CONTEXT * TOKEN + pair)) for p in parts)
    scored = sum(p.items * p.captions * pair for p in parts)
    encoded = sum(p.crops * IMAGE + p.distinct * (tokens or p.words + 2) * TOKEN for p in parts)
    return each / (scored + (0 if stored else encoded))


class Items(NamedTuple):
    """Item i is image `image_rows[i]` with the captions `text_rows[i]`."""

    part: Part
    images: list[ImageRef]
    texts: list[str]
    image_rows: Tensor
    text_rows: Tensor

    def pairs(self) -> Tensor:
        """Rows of images and of texts, the captions of an item one after the other."""
        rows = self.image_rows.repeat_interleave(self.part.captions)
        return torch.stack([rows, self.text_rows.flatten()], dim=1)


def write_items(part: Part, folder: Path) -> Items:
    """Writes random images into `folder` and makes captions of random words."""
    chance, noise = random.Random(part.name), np.random.default_rng(part.items)
    folder.mkdir()
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
    columns = torch.arange(part.items * part.captions) % part.distinct
    rows = torch.arange(part.items) % part.crops
    return Items(part, images, list(texts), rows, columns.view(-1, part.captions))


def opened(image: ImageRef) -> Image.Image:
    """Opens an image as published scripts do: with PIL, for every item again."""
    picture = Image.open(image.path).convert("RGB")
    if image.box is None:
        return picture
    x, y, width, height = image.box
    return picture.crop((x, y, x + width, y + height))


@torch.no_grad()
def published(backbone: OpenClip, adapter: Adapter, suite: Sequence[Items]) -> Tensor:
    """Scores items batch by batch, an image and a caption as often as they occur."""
    scores = []
    for items in suite:
        for rows in torch.arange(items.part.items).split(items.part.batch):
            images = [opened(items.images[int(i)]) for i in items.image_rows[rows]]
            pixels = [backbone.preprocess(image) for image in images]
            texts = [items.texts[int(j)] for j in items.text_rows[rows].flatten()]
            image = backbone.encode_image(torch.stack(pixels).to(DEVICE), adapter.image_input)
            text = encode_padded(backbone, texts, adapter.text_input)
            mask = torch.eye(len(rows), dtype=torch.bool, device=DEVICE)
            mask = mask.repeat_interleave(items.part.captions, 1)
            scores.append(adapter(image, text, mask).values[mask].cpu())
    return torch.cat(scores)


def scorer(backbone: OpenClip, adapter: Adapter, suite: Sequence[Items], store: Path) -> Tensor:
    """Scores the suite in one session over `store`, as an evaluation does."""
    score = Scorer(backbone, adapter, store, BATCH)
    images = list(dict.fromkeys(chain.from_iterable(items.images for items in suite)))
    texts = list(dict.fromkeys(chain.from_iterable(items.texts for items in suite)))
    with score.session(images, texts):
        return torch.cat([score(x.images, x.texts, x.pairs()) for x in suite])


def compare(
    backbone: OpenClip, adapters: Sequence[Adapter], parts: Sequence[Part], root: Path
) -> list[float]:
    """Returns how many times faster each adapter is over one store; prints seconds."""
    for adapter in adapters:
        adapter.attach(backbone)
        adapter.to(DEVICE).eval()
    root.mkdir()
    suite = [write_items(part, root / part.name) for part in parts]
    published(backbone, adapters[0], [suite[0]._replace(part=suite[0].part._replace(items=1))])
    expected, each = timed(partial(published, backbone, adapters[0], suite))
    print(f"{sum(p.items for p in parts)} items, item by item: {each:.2f} s")
    ratios = []
    for adapter in adapters:
        scores, seconds = timed(partial(scorer, backbone, adapter, suite, root / "store"))
        torch.testing.assert_close(scores, expected, rtol=1e-3, atol=1e-3)
        ratios.append(each / seconds)
    return ratios


def main() -> None:
    """Prints the lines of each comparison."""
    chosen = options(__doc__, scale=1 / 400, joint_scale=1 / 2000)
    backbone = random_clip()
    assert backbone.fingerprint  # hashes the weights, once for all
    with tempfile.TemporaryDirectory() as root:
        joint = MMAdapter()
        pairs = [part.scaled(chosen.joint_scale).by_pair() for part in ARO]
        first, stored = compare(backbone, [joint, joint], pairs, Path(root) / "joint")
        published_pairs = [part.by_pair() for part in ARO]
        limit, here = bound(published_pairs, pair=PAIR), bound(pairs, pair=PAIR)
        print(f"bound at these counts {here:.1f}x")
        figure("MM-Adapter on ARO, first run, times as fast", first, "x", limit, "5x")
        limit = bound(published_pairs, pair=PAIR, stored=True)
        figure("MM-Adapter on ARO from the store, times as fast", stored, "x", limit)
        parts = [part.scaled(chosen.scale) for part in PARTS]
        # An untrained probe has the scores of the backbone; its work is that of a trained one.
        first, stored = compare(backbone, [ZeroShot(), LinearProbe()], parts, Path(root) / "dual")
        print(
            f"bound {bound(PARTS, 12):.1f}x with 12 tokens a caption, {bound(parts):.1f}x at these "
            "counts"
        )
        figure("suite, first run, times as fast", first, "x", bound(PARTS), "3x")
        figure("suite, next adapter, times as fast", stored, "x", required="20x")


if __name__ == "__main__":
    main()
