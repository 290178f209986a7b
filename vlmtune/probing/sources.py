"""Labelled images to probe with: from a folder, a table or shards, split for training and testing.

In: a path, and what holds the labels. Out: images, each once, with labels and splits.
Never: the same image in both splits.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from vlmtune.data.distinct_images import training_splits
from vlmtune.data.images import content_digest, digest, open_image
from vlmtune.data.schema import EXTENSIONS, RecordError
from vlmtune.data.shards import ShardSet
from vlmtune.data.table_rows import Table
from vlmtune.data.tables import read_cells
from vlmtune.data.tar_records import Damage, RawRecord, Shard, read_records
from vlmtune.errors import UserError, counted
from vlmtune.probing.tasks import Split
from vlmtune.storage.progress import progress
from vlmtune.storage.remote.address import path_or_url
from vlmtune.types import ImageRef

TEST_EVERY = 5  # one image in so many is for testing where nothing else says which
FEWEST = 2  # images of a split

log = logging.getLogger("vlmtune")


@dataclass(frozen=True)
class LabelledImage:
    """An image of a split.

    Attributes:
        read: Returns the file, or its bytes.
        digest: Of its content.
        label: Its semantic class, "" if unknown.
        split: Whether it trains or tests probes.
    """

    read: Callable[[], Path | bytes]
    digest: str
    label: str
    split: Split

    def open(self) -> Image.Image:
        """Decodes the image; it fails as `open_image` does."""
        return open_image(self.read())


Listed = tuple[Callable[[], Path | bytes], str, str]  # image, label, split or ""


def labelled_images(
    path: Path | str, labels: str | None = None, limit: int | None = None
) -> list[LabelledImage]:
    """Returns the images of a folder, a table or shards.

    Args:
        path: A folder of images, a table (`vlmtune.data.tables`), or a folder or URL of tars.
        labels: What holds the semantic class: a column of a table or of the `.json` next to an
            image; a member of a record such as "cls", or a key of its JSON. In a folder of images
            the name of an image's folder is its class if this is None.
        limit: Images of each split at most, None for all. The split keeps the same ones each time.

    Images with a cell "split" (or a folder) called train or training are for training, all others
    of such data for testing. Without splits one image in five is for testing, by the digest of its
    content.

    Images that cannot be decoded are left out with a warning. With a limit, the images of a split
    are of as many classes as possible.
    """
    given: dict[str, Listed] = {}
    clashes = 0
    with progress("reading images", None) as advance:
        for listed in _listed(path_or_url(str(path)), labels):
            read, _, _ = listed
            name = _digest(read())
            # Equal content in both splits would let a probe learn its test images by heart.
            clashes += name in given
            given.setdefault(name, listed)
            advance(1)
    if clashes:
        log.info("repeated in %s: %s; each is used once", path, counted(clashes, "image"))
    splits = {split for _, _, split in given.values()}
    training = training_splits(splits)
    if splits - {""} and not training:
        log.warning("no split of %s is called train: one image in %d tests", path, TEST_EVERY)
    images = []
    for name, (read, label, split) in sorted(given.items()):
        given_split = _split(name, split, training)
        images.append(LabelledImage(read, name, label, given_split))
    if labels is not None and not any(image.label for image in images):
        raise UserError(
            f"expected {labels!r} in {path}, as a key of a .json or a member of a record, none has "
            "it: name another by --labels, or leave it out"
        )
    chosen = _usable(images, limit, path)
    _check(chosen, path)
    return chosen


def _digest(content: Path | bytes) -> str:
    if isinstance(content, Path):
        return digest(ImageRef(content))
    return content_digest(content)


def any_image(path: Path | str, labels: str | None = None) -> Image.Image:
    """Returns the first image of what `labelled_images` takes, whatever its label and its split."""
    located = path_or_url(str(path))
    broken = "none"
    for read, label, _ in _listed(located, labels):
        try:
            return LabelledImage(read, "", label, "test").open()
        except (RecordError, UserError) as error:
            broken = str(error)
    raise UserError(f"expected an image in {path}, got {broken}: add one")


def _usable(
    images: list[LabelledImage], limit: int | None, path: Path | str
) -> list[LabelledImage]:
    """The images of both splits; others take the place of those that cannot be decoded."""
    broken: dict[str, str] = {}
    decoded: set[str] = set()
    chosen = _first(images, limit)
    while new := [image for image in chosen if image.digest not in decoded]:
        for image in new:
            decoded.add(image.digest)
            try:
                image.open()
            except (RecordError, UserError) as error:
                broken[image.digest] = str(error)
        usable = [image for image in images if image.digest not in broken]
        chosen = _first(usable, limit)
    if broken:
        first = next(iter(broken.values()))
        log.warning("left out of %s: %s, first: %s", path, counted(len(broken), "image"), first)
    return chosen


def _first(images: list[LabelledImage], limit: int | None) -> list[LabelledImage]:
    """The first images of each class in turn; they are sorted by digest, so these are a sample."""
    train = _in_turn(images, "train")
    test = _in_turn(images, "test")
    if limit is None:
        return [*train, *test]
    kept = train[:limit]
    known = {image.label for image in train}
    left = known - {image.label for image in kept}
    if left:
        log.warning("%d of %d classes are left out: raise --limit", len(left), len(known))
    # A class that only the limit takes from training is taken from testing, too.
    test = [image for image in test if image.label not in left]
    return [*kept, *test[:limit]]


def _in_turn(images: list[LabelledImage], split: Split) -> list[LabelledImage]:
    """The images of a split: one image of each class by its name, then the next one of each."""
    seen: Counter[str] = Counter()
    turns: list[tuple[int, str, str, LabelledImage]] = []
    for image in images:
        if image.split == split:
            turn = seen[image.label]
            turns.append((turn, image.label, image.digest, image))
            seen[image.label] += 1
    # Digests differ, so that a comparison never reaches the images.
    turns.sort()
    return [image for *_, image in turns]


def _split(name: str, split: str, training: Sequence[str]) -> Split:
    if training:
        return "train" if split in training else "test"
    # The digest decides, so an image stays in its split when others are added.
    return "test" if int(name[:8], 16) % TEST_EVERY == 0 else "train"


def _check(images: list[LabelledImage], path: Path | str) -> None:
    counts = Counter(image.split for image in images)
    if min(counts["train"], counts["test"]) < FEWEST:
        raise UserError(
            f"expected {FEWEST} images or more for training and for testing in {path}, got "
            f"{counts['train']} and {counts['test']}: add images, or raise --limit"
        )
    unlabelled = sum(not image.label for image in images)
    if 0 < unlabelled < len(images):
        raise UserError(
            f"expected a label for each image in {path} or for none, {unlabelled} of {len(images)} "
            "have none: write the missing labels (a folder called train, val or test is a split)"
        )
    labels: dict[Split, set[str]] = {"train": set(), "test": set()}
    for image in images:
        labels[image.split].add(image.label)
    unknown = labels["test"] - labels["train"]
    if unknown:
        raise UserError(
            f"expected labels of testing that training has, got {sorted(unknown)[0]!r} in testing "
            "alone: choose another split, or raise --limit"
        )


def _listed(path: Path | str, labels: str | None) -> Iterator[Listed]:
    if isinstance(path, str):
        return _of_shards(path, labels)
    if path.is_dir():
        if any(path.glob("*.tar")):
            return _of_shards(path, labels)
        tables = ("*.parquet", "dataset_dict.json", "state.json")  # of a folder that is a table
        if not any(next(path.rglob(pattern), None) for pattern in tables):
            return _of_folder(path, labels)
    return _of_table(path, labels)


def _of_folder(path: Path, labels: str | None) -> Iterator[Listed]:
    for cells in read_cells(path):
        folder = Path(cells["image"]).parent
        if labels is not None:
            label = _text(cells.get(labels))
        elif str(folder) in (".", cells.get("split")):
            label = ""  # right below the folder or a split there is no folder of a class
        else:
            label = folder.name
        image = path / cells["image"]
        split = str(cells.get("split", ""))
        yield partial(_same, image), label, split


def _of_table(path: Path, labels: str | None) -> Iterator[Listed]:
    # The column of a group holds names or numbers, as that of a class does.
    given = {} if labels is None else {"group": labels}
    for row in Table(path, given=given, captioned=False).rows():
        yield partial(_same, row.image), row.group, row.split


def _of_shards(path: Path | str, labels: str | None) -> Iterator[Listed]:
    """Every image of every record, with captions or without."""
    damaged = 0
    files = ShardSet(path).files if isinstance(path, str) else sorted(path.glob("*.tar"))
    for file in files:
        for raw in read_records(file):
            if isinstance(raw, Damage):
                damaged += 1
                continue
            try:
                label = _label(raw, labels)
            except (ValueError, RecursionError):  # a malformed json, the latter of deep nesting
                damaged += 1
                continue
            for name, span in raw.spans.items():
                extension = name.rpartition(".")[2]
                if extension in EXTENSIONS:
                    yield partial(_part, raw.shard, *span), label, ""
    if damaged:
        log.warning("%d damaged records of %s are left out", damaged, path)


def _label(raw: RawRecord, labels: str | None) -> str:
    if labels is None:
        return ""
    # WebDataset keeps a label as a member of its own, or as a key of the json.
    member = raw.members.get(labels)
    if member is not None:
        return member.decode("utf-8", "replace").strip()
    text = raw.members.get("json") or b"{}"
    cells = json.loads(text)
    if not isinstance(cells, dict):
        return ""
    return _text(cells.get(labels))


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell)


def _same(content: Path | bytes) -> Path | bytes:
    return content


def _part(file: Shard, offset: int, size: int) -> bytes:
    with file.open("rb") as tar:
        tar.seek(offset)
        return tar.read(size)
