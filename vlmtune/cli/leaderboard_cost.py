"""What a model costs in a search: bytes an image, and pairs a second on this machine.

In: a model, a caption, and the file that keeps the cost. Out: the cost, measured once.
"""

import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch
from PIL import Image
from typing_extensions import TypedDict

from vlmtune.errors import UserError
from vlmtune.model.model import Model
from vlmtune.report.leaderboard import Cost
from vlmtune.search.encoder import IndexEncoder
from vlmtune.search.parts import Encoded, write_part
from vlmtune.storage.files import read_json, write_text
from vlmtune.types import Pooled, Rows

PAIRS = 1000
"""Images that a caption is scored with."""
RUNS = 3
"""Of these the fastest counts."""


class _Kept(TypedDict):
    bytes_an_image: int
    pairs_a_second: float


def cost_of(model: Model, caption: str, file: Path) -> Cost | None:
    """What an index of the model stores and how fast it is searched; None without an index.

    It is measured once, so that a page which is made again is the same page.

    Args:
        model: The model.
        caption: The caption that images are scored with.
        file: Where the cost is kept.
    """
    if file.is_file():
        kept = read_json(file, "the cost of a model", "remove it", _Kept)
        return Cost(**kept)
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
    cost = Cost(size, _pairs_a_second(encoder, scored, caption))
    write_text(file, json.dumps(asdict(cost)))
    return cost


def _pairs_a_second(encoder: IndexEncoder, image: Rows, caption: str) -> float:
    """How fast images from an index are scored with a caption, to two digits."""
    copies = torch.zeros(PAIRS, dtype=torch.int64)
    images = image.take(copies)
    seconds = []
    with encoder.evaluation():
        _, text = encoder.encode_text([caption])
        for _ in range(RUNS):
            start = time.perf_counter()
            encoder.score(text, images)
            seconds.append(time.perf_counter() - start)
    return float(f"{PAIRS / min(seconds):.2g}")
