"""What a model costs in a search: bytes an image, and pairs a second on this machine.

In: a model, captions, and the file that keeps the cost. Out: the cost, measured once.
"""

import contextlib
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from PIL import Image

from vlmtune.errors import UserError
from vlmtune.model.model import Model
from vlmtune.report.leaderboard import Cost
from vlmtune.search.encoder import IndexEncoder
from vlmtune.search.index import SCORED
from vlmtune.search.parts import Encoded, write_part
from vlmtune.storage.files import read_json, write_text
from vlmtune.types import Pooled, Rows

CALLS = 8
"""In each, a caption is scored with as many images as a search takes at a time."""
RUNS = 3
"""Of these the fastest counts."""


def cost_of(model: Model, captions: Sequence[str], file: Path) -> Cost | None:
    """What an index of the model stores and how fast it is searched; None without an index.

    The first caption that the model can read is scored with images. The file keeps the cost, so
    that a page which is made again is the same page.
    """
    if file.is_file():
        return read_json(file, "the cost of a model", "remove it", Cost)
    pixels = model.preprocess(Image.new("RGB", (64, 64)))
    try:
        encoder = IndexEncoder(model)
        vectors, prepared = encoder.encode_images(torch.stack([pixels]))
    except UserError:
        return None
    with tempfile.TemporaryDirectory() as temporary:
        part = Path(temporary, "part")
        write_part(part, {}, [Encoded(["image"], vectors, prepared)])
        size = sum(file.stat().st_size for file in part.glob("*.bin"))
    scored = Pooled(vectors) if prepared is None else prepared
    cost = Cost(size, _pairs_a_second(encoder, scored, captions))
    if cost.pairs_a_second is not None:  # the model may know a caption of the next call
        write_text(file, json.dumps(asdict(cost)))
    return cost


def _pairs_a_second(encoder: IndexEncoder, image: Rows, captions: Sequence[str]) -> float | None:
    """How fast images from an index are scored with a caption, to two digits.

    None for a model with a vocabulary of its own that lacks a word of each caption.
    """
    copies = torch.zeros(SCORED, dtype=torch.int64)
    images = image.take(copies)
    with encoder.evaluation():
        for caption in captions:
            with contextlib.suppress(UserError):
                _, text = encoder.encode_text([caption])
                break
        else:
            return None
        seconds = []
        for _ in range(RUNS):
            start = time.perf_counter()
            for _ in range(CALLS):
                encoder.score(text, images)
            seconds.append(time.perf_counter() - start)
    return float(f"{CALLS * SCORED / min(seconds):.2g}")
