"""Builds an index and lets it grow.

In: image files and a model. Out: the folder of the index. Never: an image encoded twice, an
unreadable one left out without a word, or a run that damages the index before it.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vlmtune.data.images import open_image
from vlmtune.errors import UserError, counted
from vlmtune.features.pictures import Failures, PictureReader
from vlmtune.model.model import Model
from vlmtune.model.resolving import PREFIXES
from vlmtune.search.encoder import IndexEncoder
from vlmtune.search.files import (
    LIST,
    PART,
    VERSION,
    WRITTEN,
    Listed,
    Source,
    part_key,
    read_list,
    shortlist_key,
    undamaged,
)
from vlmtune.search.parts import Encoded, Part, write_part
from vlmtune.search.shortlist import Shortlist, write_shortlist
from vlmtune.storage.files import remove, write_text
from vlmtune.storage.folder import DamagedError, locked
from vlmtune.storage.image_files import SUFFIXES, image_files
from vlmtune.storage.progress import progress
from vlmtune.types import ImageRef

PART_ROWS = 2048  # images of a part: what a killed run loses at most


class Unread(NamedTuple):
    """A file that is not in the index, and why in one line."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Built:
    """What a run did.

    Attributes:
        images: Files in the index now.
        added: Files that were new or had changed.
        unread: Files that are not in the index because they cannot be read.
    """

    images: int
    added: int
    unread: tuple[Unread, ...]


def build_index(
    images: Sequence[str | Path],
    model: Model,
    out: str | Path,
    name: str | Path,
    pretrained: str | None = None,
    architecture: str | None = None,
) -> Built:
    """Encodes image files into the index `out`; an index that exists grows.

    An image is known by the digest of its content: a file whose content is in the index already is
    not encoded again, and a file that changed is. Files of earlier runs stay in the index. A run
    that is killed leaves the index as it was, and the next run takes over what it finished.

    Args:
        images: Files, and folders that are searched for files with the suffix of an image.
        model: Encodes them.
        out: Folder of the index.
        name: What `vlmtune.load` takes for the model; `Index.open` loads it by this name.
        pretrained: Passed to `vlmtune.load` by `Index.open`.
        architecture: Passed to `vlmtune.load` by `Index.open`.

    Raises:
        UserError: There is no such file or no readable image, `out` has the images of another
            model, is damaged or is not an index, or cannot be written.
    """
    out = Path(out)
    files, unread = _files(images)
    with locked(out):
        encoder = IndexEncoder(model)
        source: Source = {
            "name": _absolute(name),
            "pretrained": pretrained and _absolute(pretrained),
            "architecture": architecture,
            "identity": encoder.identity(),
        }
        listed = _listed(out, source)
        parts = _Parts(out, listed)
        # To count what this run added or replaced.
        before = dict(listed["images"])
        reader = PictureReader(model.backbone.preprocess, model.batch_size, Failures())
        # One unreadable file among a million must not end the run; it is reported.
        with reader.failures.skipped():
            contents = reader.digests([ImageRef(file) for file in files])
            digests = dict(zip(files, contents, strict=True))
            new: dict[str, Path] = {}  # the first file of each content
            for file, digest in digests.items():
                if digest and digest not in parts.ids:
                    new.setdefault(digest, file)
            parts.add(new, encoder, reader)
        for file, digest in digests.items():
            if digest in parts.ids:
                listed["images"][str(file)] = digest
            else:
                listed["images"].pop(str(file), None)
                unread.append(Unread(file, _reason(file)))
        if not listed["images"]:
            first = f", the first as {unread[0].reason}" if unread else ""
            raise UserError(
                f"expected images ({', '.join(SUFFIXES)}) that can be read, got none in "
                f"{counted(len(unread), 'file')}{first}: name other files or folders"
            )
        # Whoever has read the list of before opens its shortlist: the next run removes that.
        listed["shortlist"] = _shortlist(out, listed, parts.names, encoder)
        listed["parts"] = parts.names
        write_text(out / LIST, json.dumps(listed, indent=1) + "\n")
    indexed = listed["images"]
    added = sum(before.get(path) != digest for path, digest in indexed.items())
    return Built(len(indexed), added, tuple(unread))


class _Parts:
    """The parts of an index: those of its list, those that a killed run left, and new ones."""

    def __init__(self, folder: Path, listed: Listed) -> None:
        self.folder = folder
        self.names = list(listed["parts"])
        self.key = part_key(listed["model"]["identity"])
        self.ids = set[str]()
        for name in self.names:
            with undamaged(folder, name):
                part = Part(folder / name, self.key)
            self.ids.update(part.ids)
        # What a killed run left: whole parts are taken over, the rest is removed.
        known = (*self.names, listed["shortlist"])
        for path in sorted(folder.glob("*")):
            if path.name in known or not WRITTEN.fullmatch(path.name):
                continue
            try:
                part = Part(path, self.key)
            except DamagedError:  # half-written, of another model, or an unlisted shortlist
                remove(path)
                continue
            self.ids.update(part.ids)
            if not PART.fullmatch(path.name):  # whole, but killed before it got its name
                path = path.rename(folder / self._next())
            self.names.append(path.name)

    def _next(self) -> str:
        """The name of the next part; those of all that are in the folder are lower."""
        # Folders that no list names count too, as a killed run may have left them.
        names = [path.name for path in self.folder.glob("part-*")]
        whole = filter(PART.fullmatch, [*names, *self.names])
        numbers = [int(name.removeprefix("part-")) for name in whole]
        highest = max(numbers, default=-1)
        return f"part-{highest + 1:05}"

    def add(self, images: Mapping[str, Path], encoder: IndexEncoder, reader: PictureReader) -> None:
        """Encodes images by digest, part by part."""
        names = list(images)
        with progress("indexing images", len(names)) as advance:
            for start in range(0, len(names), PART_ROWS):
                some_names = names[start : start + PART_ROWS]
                some_images = {name: images[name] for name in some_names}
                part = self._next()
                chunks = _encoded(some_images, encoder, reader, advance)
                ids = write_part(self.folder / part, self.key, chunks)
                if ids:
                    self.ids.update(ids)
                    self.names.append(part)


def _encoded(
    images: Mapping[str, Path],
    encoder: IndexEncoder,
    reader: PictureReader,
    advance: Callable[[int], None],
) -> Iterator[Encoded]:
    """Encodes images batch by batch; those that cannot be read are left out."""
    # The reader yields the names of what it could read, batch by batch.
    pictures = {name: ImageRef(path) for name, path in images.items()}
    for names, pixels in reader.batches(pictures, list(pictures)):
        vectors, prepared = encoder.encode_images(pixels)
        yield Encoded(names, vectors, prepared)
        advance(len(names))


def _shortlist(out: Path, listed: Listed, names: list[str], encoder: IndexEncoder) -> str | None:
    """The name of the shortlist of these parts; it is written unless it is the listed one."""
    identity = listed["model"]["identity"]
    name = listed["shortlist"]
    parts = [Part(out / part, part_key(identity)) for part in names]
    # Parts with vectors of their own need no shortlist.
    if encoder.joint is None or parts[0].vectors.shape[1]:
        return None
    # A shortlist of fewer parts is extended rather than computed again.
    before = None
    number = 0
    if name is not None:
        number = int(name.removeprefix("recall-")) + 1
        with contextlib.suppress(DamagedError):
            before = Shortlist(out / name, shortlist_key(identity, listed["parts"]))
            if names == listed["parts"]:
                return name
    new = f"recall-{number:05}"
    write_shortlist(out / new, shortlist_key(identity, names), parts, encoder, before)
    return new


def _listed(out: Path, model: Source) -> Listed:
    """The list of the index in `out`, or an empty one."""
    if (out / LIST).exists():
        listed = read_list(out)
        if listed["model"]["identity"] != model["identity"]:
            raise UserError(
                f"expected the model of the index {out}, {listed['model']['name']}, got "
                f"{model['name']} with other weights or preprocessing: use that model, or another "
                "folder"
            )
        return listed
    # What a killed first run left may stay.
    inside = [path.name for path in out.glob("*")]
    others = [name for name in inside if not WRITTEN.fullmatch(name)]
    if others:
        raise UserError(
            f"expected an index or a new folder, {out} has other files, first {min(others)!r}: "
            "choose another folder"
        )
    return {
        "version": VERSION,
        "model": model,
        "parts": [],
        "shortlist": None,
        "images": {},
    }


def _absolute(name: str | Path) -> str:
    """A name that leads to the same file from any working directory."""
    if Path(name).exists():
        return os.path.abspath(name)
    # "ViT-B-32:weights.pt" and "local-dir:folder" end with a path; a tag such as "openai" is none.
    first, _, path = str(name).partition(":")
    if Path(path).is_file() or (first in PREFIXES and Path(path).is_dir()):
        return f"{first}:{os.path.abspath(path)}"
    return str(name)


def _files(images: Sequence[str | Path]) -> tuple[list[Path], list[Unread]]:
    """The files of `images`, absolute and each once, and those whose names are not text."""
    files: dict[Path, None] = {}
    for given in map(Path, images):
        if not given.exists():
            raise UserError(
                f"expected image files or folders, {given} is missing: name one that exists"
            )
        listed = [given]
        if given.is_dir():
            listed = image_files(given)
        for path in listed:
            files[Path(os.path.abspath(path))] = None
    reason = "expected a file name in UTF-8, got another: rename the file"
    named, unnamed = [], []
    for file in files:
        if _is_text(str(file)):
            named.append(file)
        else:
            unnamed.append(Unread(file, reason))
    return named, unnamed


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # bytes of the name that are not UTF-8
        return False
    return True


def _reason(file: Path) -> str:
    try:
        open_image(file)
    except UserError as error:
        return " ".join(str(error).split())
    return f"expected an image in {file}, it changed while it was read: index it again"
