"""Finds the images of test benchmarks by their content, which builders leave out of training.

In: images of benchmarks, and an image to train on. Out: whether its bytes are among them, and which
of them it looks like. Never: a changed image.
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from data_builders.measured import ANNOTATIONS, Measured, measured_sources, named_images
from data_builders.shard_files import sha256
from vlmtune.data.images import open_image
from vlmtune.data.schema import RecordError
from vlmtune.errors import UserError, counted
from vlmtune.storage.files import reading, regular
from vlmtune.storage.image_files import SUFFIXES, image_files

NEAR = 4  # bits of 64 in which the hashes of similar images differ at most
_SHOWN = 3  # similar images in the warning
_FLAT = 8  # fewer bits tell too little: most pictures on a plain background have them


class MeasuredImages:
    """The images of benchmarks, compared by content where their files are there, else by name.

    If a file names an image that is not there, all of its names are compared.

    Args:
        paths: Folders of images; annotation files or tables, whose images are next to them or are
            compared by name (`data_builders.measured`); folders of annotation files.
        corpus: The corpus whose images will be looked up, as of `Measured`.
        every_name: Also compare the names in files whose images are next to them, for corpora whose
            images have one name everywhere.
        exists: Tells whether an image file exists, and counts it if not.
    """

    def __init__(
        self, paths: Sequence[Path], corpus: str | None = None, every_name: bool = False,
        exists: Callable[[Path], bool] = Path.is_file,
    ) -> None:  # fmt: skip
        by_name, files = _parted(paths, every_name)
        self.names = Measured(by_name, corpus) if by_name else None
        self.files: dict[bytes, Path] = {}
        self._looks: list[tuple[int, Path]] = []
        for file in files:
            content = _content(file)
            self.files[hashlib.sha256(content).digest()] = file
            value = difference_hash(content)
            if value is not None:
                self._looks.append((value, file))
        self._hashes = np.array([value for value, _ in self._looks], dtype=np.uint64)
        self._exists = exists
        self._similar: list[tuple[str, Path]] = []
        self._known: dict[Path, bytes | None] = {}
        self._compared: set[bytes] = set()

    def has(self, name: str, digest: bytes | None) -> bool:
        """Tells whether an image is measured, by its name and the sha256 of its bytes."""
        return digest in self.files or bool(name and self.names and self.names.has(name))

    def digest(self, image: Path | bytes, name: str) -> bytes | None:
        """Returns the sha256 of an encoded image; None if its file is missing. Reads it once."""
        if isinstance(image, bytes):
            return self._compare(image, name or "an image without a name")
        if image not in self._known:
            there = self._exists(image)
            self._known[image] = self._compare(_content(image), name) if there else None
        return self._known[image]

    def report(self, counts: Counter[str]) -> None:
        """Counts the images that look like measured ones, and names the first."""
        if not self._similar:
            return
        counts["similar to a measured image"] = len(self._similar)
        images = counted(len(self._similar), "image")
        shown = ", ".join(f"{name} ({like.name})" for name, like in self._similar[:_SHOWN])
        print(
            f"warning: {images} like measured ones, kept: {shown}",
            file=sys.stderr,
        )

    def _compare(self, content: bytes, name: str) -> bytes:
        digest = hashlib.sha256(content).digest()
        if digest not in self._compared:
            self._compared.add(digest)
            like = None if self.has(name, digest) else self._like(content)
            if like is not None:
                self._similar.append((name, like))
        return digest

    def _like(self, content: bytes) -> Path | None:
        """The measured image that looks like this one; None if there is none."""
        value = difference_hash(content) if self._looks else None
        if value is None:
            return None
        different = self._hashes ^ np.uint64(value)
        bits = np.unpackbits(different.view(np.uint8)).reshape(-1, 64)
        distances = bits.sum(axis=1)
        nearest = int(distances.argmin())
        return self._looks[nearest][1] if distances[nearest] <= NEAR else None


def difference_hash(content: bytes) -> int | None:
    """Returns the 64-bit difference hash (dHash) of an image; None for a flat or damaged one.

    The image is reduced to 9 x 8 grey pixels; bit i tells whether pixel i is brighter than the one
    to its right. Scaled, compressed and recoloured copies differ in few bits. Source: Neal Krawetz,
    "Kind of Like That", 2013.

    Example:
        >>> difference_hash(b"no image")
    """
    try:
        image = open_image(content).convert("L").resize((9, 8), Image.Resampling.BOX)
    except RecordError:
        return None
    pixels = np.asarray(image)
    bits = (pixels[:, :-1] > pixels[:, 1:]).flatten()
    if not _FLAT <= bits.sum() <= 64 - _FLAT:
        return None
    return int.from_bytes(np.packbits(bits).tobytes(), "little")


def measured_checksums(paths: Sequence[Path], every_name: bool = False) -> dict[str, str]:
    """Returns the sha256 of the annotation files of `measured`, and one of all its images.

    `every_name` is that of `MeasuredImages`.
    """
    by_name, images = _parted(paths, every_name)
    # The names in a file are compared, or the images beside it: both follow from its content.
    files = [path for path in map(Path, paths) if path.is_file() and path not in by_name]
    sums: dict[str, str] = {}
    for name, path in measured_sources([*by_name, *files]).items():
        sums[name] = sha256(path)
    if images:
        digests = sorted(map(sha256, images))
        listed = bytes.fromhex("".join(digests))
        sums["images of measured"] = hashlib.sha256(listed).hexdigest()
    return sums


def _parted(paths: Sequence[Path], every_name: bool = False) -> tuple[list[Path], list[Path]]:
    """What is compared by name, and the image files that are compared by content."""
    by_name, images = [], []
    for path in map(Path, paths):
        if path.is_dir():
            inside = image_files(path)
            annotations = [x for x in sorted(path.rglob("*")) if x.suffix.lower() in ANNOTATIONS]
        else:
            inside = [path.parent / name for name in named_images(path)]
            inside = [file for file in dict.fromkeys(inside) if file.is_file()]
            annotations = [path]
        images += inside
        if not inside or (every_name and annotations):
            by_name.append(path)
            continue
        present = {file.name for file in inside}
        by_name += [file for file in annotations if _names_others(file, present)]
    return by_name, list(dict.fromkeys(images))


def _names_others(annotations: Path, present: Collection[str]) -> bool:
    """Whether a file names images that are not there, so that only their names can be compared."""
    try:
        names = named_images(annotations)
    except UserError as error:  # it may be of another program
        print(f"warning: no names are read from {annotations}: {error}", file=sys.stderr)
        return False
    for name in map(PurePosixPath, names):
        if name.suffix.lower() in SUFFIXES and name.name not in present:
            return True
    return False


def _content(path: Path) -> bytes:
    with reading(path, "an image"):
        return regular(path).read_bytes()
