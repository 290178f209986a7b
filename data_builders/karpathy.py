"""Karpathy's caption JSON, the form in which Flickr30K and COCO are distributed for retrieval."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from data_builders.annotations import parsed, read_json
from data_builders.common import Record, ShardBuilder
from data_builders.images import LIMIT, Presence, inside
from vlmtune.errors import UserError
from vlmtune.types import Group

_WHAT = "Karpathy's caption JSON"


class KarpathyBuilder(ShardBuilder):
    """One image with all its captions a record; equal captions of one image are stated once.

    A caption is its own id, so that one written for two images is never a negative of either.

    Args:
        path: The JSON, `{"images": [{"filename", "filepath"?, "split", "sentences": [{"raw"}]}]}`.
        images: Folder that holds the files, in the subfolders that `filepath` names if any.
        splits: Which splits to write, together.
        missing: Largest share of image files that may be missing; they are skipped and counted.
        records_per_shard: See `ShardBuilder`.
    """

    def __init__(
        self,
        path: Path,
        images: Path,
        splits: Sequence[str] = ("train",),
        missing: float = LIMIT,
        records_per_shard: int = 1000,
    ) -> None:
        super().__init__(records_per_shard)
        self.path, self.images, self.splits = Path(path), Path(images), tuple(splits)
        self.missing = missing

    def sources(self) -> Mapping[str, Path]:
        """See `Builder`."""
        return {self.path.name: self.path}

    def records(self) -> Iterator[Record]:
        """See `ShardBuilder`.

        Raises:
            UserError: The JSON is missing or of another layout, a split is not in it, an image is
                not inside the folder, or too many are missing.
        """
        content = read_json(self.path, _WHAT)
        rows = parsed(self.path, _WHAT, lambda: [_row(image) for image in content["images"]])
        known = sorted({split for split, _, _ in rows})
        if not self.splits or not set(self.splits) <= set(known):
            raise UserError(
                f"expected splits out of {known} of {self.path}, got {list(self.splits)}: "
                "correct `splits`"
            )
        presence = Presence(self.counts, self.missing)
        for number, (split, file, captions) in enumerate(rows):
            if split not in self.splits:
                continue
            path = inside(self.images, file, self.path, f"images[{number}]")
            if not presence.has(path):
                continue
            if not captions:
                self.counts["skipped: no caption"] += 1
                continue
            self.counts["captions"] += len(captions)
            yield _group(file, captions), [path]
        presence.check()


def _row(image: dict[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    folder = image.get("filepath") or ""
    file = f"{folder}/{image['filename']}" if folder else str(image["filename"])
    raws = (" ".join(sentence["raw"].split()) for sentence in image["sentences"])
    return image["split"], file, tuple(dict.fromkeys(raw for raw in raws if raw))


def _group(file: str, captions: tuple[str, ...]) -> Group:
    return Group(
        key=re.sub(r"[^A-Za-z0-9_\-]", "_", str(Path(file).with_suffix(""))),
        image_ids=(file,),
        text_ids=captions,
        texts=captions,
        truth=torch.ones(1, len(captions), dtype=torch.bool),
        true_ids=(frozenset(captions),),
    )
