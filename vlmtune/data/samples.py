"""Samples of a webdataset pipeline, or of any other loop, as tars to train on.

In: dictionaries with an image and captions. Out: a folder of tars. Never: two samples in memory.
"""

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image
from webdataset.writer import ShardWriter

from vlmtune.data.rgb import to_rgb
from vlmtune.data.schema import EXTENSIONS
from vlmtune.data.shards import ShardSet
from vlmtune.data.table_cells import captions
from vlmtune.errors import UserError
from vlmtune.storage.files import reading, write_atomically


def write_samples(
    samples: Iterable[Mapping[str, Any]], folder: str | Path, per_tar: int = 1000
) -> ShardSet:
    """Writes each sample as a record of tars in a new folder, and returns their set.

    Samples are those of `webdataset.WebDataset(...)`, decoded or not, or any dictionaries. The
    image is a picture or encoded bytes, called jpg, jpeg, png or webp, or a picture called image.
    Captions are in json or txt, or, as hard negatives, in fields named like the columns of a table.

    Raises:
        UserError: The folder exists, there is no sample, or one lacks its image or a caption.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from PIL import Image
        >>> sample = {"image": Image.new("RGB", (8, 8)), "caption": "a dog"}
        >>> with TemporaryDirectory() as folder:
        ...     _ = write_samples([sample], f"{folder}/mine")
        ...     [path.name for path in Path(folder, "mine").iterdir()]
        ['data-000000.tar']
    """
    folder = Path(folder)
    if folder.exists():
        raise UserError(f"expected a new folder, got {folder}: remove it, or name another")
    with write_atomically(folder) as new:
        new.mkdir()
        written = 0
        with ShardWriter(f"{new}/data-%06d.tar", maxcount=per_tar, verbose=0) as tars:
            for sample in samples:
                where = f"sample {written} ({sample.get('__key__', 'no key')})"
                record = {**_image(sample, where), "json": _texts(sample, where)}
                tars.write({"__key__": f"{written:09d}", **record})
                written += 1
        if not written:
            raise UserError("expected samples to write, got none: check the pipeline")
    return ShardSet(str(folder))


def _image(sample: Mapping[str, Any], where: str) -> dict[str, bytes]:
    for name in (*EXTENSIONS, "image"):
        image = sample.get(name)
        if isinstance(image, bytes) and name in EXTENSIONS:
            return {name: image}
        if isinstance(image, Image.Image):
            png = io.BytesIO()
            to_rgb(image).save(png, "PNG")
            return {"png": png.getvalue()}
    names = ", ".join(sample)
    raise UserError(f"expected an image in {where}, got {names}: decode it to a picture")


def _texts(sample: Mapping[str, Any], where: str) -> dict[str, tuple[str, ...]]:
    cells = dict(sample)
    with reading(where, "captions in UTF-8, and an object as json", "leave the sample out"):
        plain = cells.pop("txt", "")
        record = cells.pop("json", {})
        if isinstance(record, bytes):
            record = json.loads(record)
        cells.update(record)
        true, false = captions(cells)
        if not true:  # json and fields have priority, as in tars that are read
            text = plain.decode() if isinstance(plain, bytes) else plain
            true, _ = captions({"caption": text.splitlines()})
    if not true:
        raise UserError(f"expected a caption in {where}, got none: leave the sample out")
    return {"caption": true, "negative": false}
