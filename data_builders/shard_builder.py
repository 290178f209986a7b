"""The base of all builders: writes records into shards with a manifest, whole or not at all.

In: annotated images. Out: a folder of shards. Never: a changed image.
"""

import hashlib
import json
import os
import re
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from pydantic import PositiveInt
from typing_extensions import override

from data_builders.left_out import LIMIT, LeftOut, Line, listed
from data_builders.parts import PART, Part, check_shards, finish, read_part
from data_builders.processes import in_processes
from data_builders.shard_chunks import Record, ShardChunks
from data_builders.shard_files import all_named, sha256, write_shard
from data_builders.unfinished import folder_of, unfinished
from vlmtune.config import Configured, Spec
from vlmtune.data.schema import MANIFEST, Manifest, RecordError, check
from vlmtune.errors import UserError
from vlmtune.storage.files import read_json, remove, write_atomically
from vlmtune.storage.progress import progress as progress_bar
from vlmtune.types import Group

Fraction = Annotated[float, Ge(0), Le(1)]


class Builder(Configured, ABC):
    """Writes a corpus into a folder. Subclasses implement `write` and name their `sources`.

    Attributes:
        idle: Values of arguments, in the form of JSON, that do not change the result; `...` stands
            for any value. They are left out of the manifest, so that a build of before is reused.
    """

    idle: ClassVar[Mapping[str, Any]] = {}

    @cached_property
    def counts(self) -> Counter[str]:
        """Counts for the manifest, e.g. `self.counts["skipped: no caption"] += 1`."""
        return Counter()

    def sources(self) -> Mapping[str, Path]:
        """Returns the annotation files, by name; their sha256 goes into the manifest.

        By default these are all arguments that are existing files, also files of plug-ins among the
        arguments. So a folder built from a file that has changed since is never reused.
        """
        files = dict.fromkeys(_argument_files(self.__dict__.get("init_args", {})))
        return all_named(*({file.name: file} for file in files))

    def paper(self) -> str | None:
        """Returns what the paper of this corpus counts, for the build to print; None if unknown."""
        return None

    def checksums(self) -> dict[str, str]:
        """Returns the sha256 of each source by name, for the manifest."""
        return {name: sha256(Path(path)) for name, path in self.sources().items()}

    @abstractmethod
    def write(self, folder: Path, tick: Callable[[], None]) -> None:
        """Writes into the empty `folder`, calls `tick` after each record."""

    def build(self, out: Path, progress: bool = True) -> None:
        """Writes the corpus to `out`, whole or not at all.

        Reuses `out` if it holds the result of the same builder, arguments and sources.
        """
        out = Path(out)
        identity = self.identity()
        if reusable(out, identity):
            return
        self.counts.clear()
        with write_atomically(out) as folder:
            folder.mkdir()
            with progress_bar(type(self).__name__, None, progress) as advance:
                self.write(folder, lambda: advance(1))
            counts = dict(sorted((+self.counts).items()))
            manifest = Manifest(**identity, shards=(), counts=counts)
            (folder / MANIFEST).write_text(manifest.to_json())
            reusable(out, identity)  # another process may have written there meanwhile

    @override
    def spec(self) -> Spec:
        spec = super().spec()
        arguments = dict(spec["init_args"])
        for name, idle in self.idle.items():
            if idle in (..., arguments.get(name)):
                arguments.pop(name, None)
        return {**spec, "init_args": arguments}

    def identity(self) -> dict[str, Any]:
        """Returns what makes a build another one: builder, arguments, and sha256 of the sources.

        They are as JSON has them, so that what a file holds can be compared with them.
        """
        spec, sources = self.spec(), self.checksums()
        identity = {"builder": spec["class_path"], "arguments": spec["init_args"]}
        return json.loads(json.dumps({**identity, "sources": sources}, default=str))


def reusable(out: Path, identity: Mapping[str, Any]) -> bool:
    """Tells whether `out` holds the build or the part of this identity."""
    if out.is_file():
        raise UserError(f"expected a folder, got the file {out}: choose another --out")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    file = out / (PART if "part" in identity else MANIFEST)
    content = read_json(file, "a build") if file.is_file() else None
    if not isinstance(content, dict) or content != {**content, **identity}:
        raise UserError(
            f"expected {out} to be empty or to hold this very build, it holds something else: "
            "choose another folder or remove it"
        )
    if "part" in identity:
        read_part(out)  # which checks the shards
    else:
        check_shards(out, {shard["file"]: shard["bytes"] for shard in content["shards"]})
    print(f"{out} already contains this build; reusing it", file=sys.stderr)
    return True


class ShardBuilder(Builder):
    """Turns the annotations of a corpus into shards; a group is one record and never split.

    Records whose image is missing, damaged, too large or not an image are left out and listed.

    Args:
        records_per_shard: Number of groups in one tar; fewer where some are left out.
    """

    def __init__(self, records_per_shard: PositiveInt = 1000) -> None:
        self.records_per_shard = records_per_shard

    @cached_property
    def left_out(self) -> LeftOut:
        """What `records` leaves out because it cannot be used."""
        return LeftOut(self.counts)

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """Yields tuples: a group and a list of its images, encoded or files, as in `image_ids`.

        All parts of a build call it, and each reads all of it: what is chosen among all records is
        the same in each. What it counts before a record belongs to that record, but for "skipped".
        """

    def exists(self, file: Path) -> bool:
        """Tells whether an image file exists, and lists it if not. Call it once a file."""
        exists = file.is_file()
        self.left_out.total += 1
        if not exists:
            self.left_out.add(Line(str(file), "image missing"))
        return exists

    def lines(self, image: str, source: bytes | Path, reason: str, detail: str) -> Iterator[Line]:
        """Yields the lines of an image that cannot be used, by its id; of tables, its rows."""
        where = f"image {image!r}" if isinstance(source, bytes) else str(source)
        yield Line(where, reason, detail)

    @override
    def build(
        self,
        out: Path,
        progress: bool = True,
        workers: int = 1,
        part: Part | None = None,
        max_left_out: float = LIMIT,
    ) -> None:
        """Writes the corpus, or a part of it, to `out`; resumes from what a killed build left.

        Args:
            out: The folder. It is reused if it contains this very build.
            progress: Whether to show a bar.
            workers: Number of processes that read and check images and write shards. The result is
                the same with any number.
            part: The part to write; None for all.
            max_left_out: Largest fraction of the images, or of the rows of a table, that may be
                missing or damaged.

        Raises:
            UserError: The annotations are wrong, too much is unusable, or `out` contains anything
                else.
        """
        out = Path(out)
        identity = self.identity()
        named = identity if part is None else {**identity, "part": [part.number, part.count]}
        if reusable(out, named):
            remove(folder_of(out))  # if a build was killed after it had moved its shards
            return
        with unfinished(out, named) as build:
            if reusable(out, named):  # another process built it meanwhile
                return
            self.counts.clear()
            self.left_out.clear()
            chunks = ShardChunks(self.records_per_shard, part or Part(), self.counts, self.lines)
            self._run = chunks, build, workers, out
            with progress_bar(type(self).__name__, None, progress) as advance:
                self.write(build.shards, lambda: advance(1))
            contents = chunks.contents(self.left_out)
            states = [state for n, state in sorted(build.states.items()) if n < contents.shards]
            finish(build.shards, identity, part, contents, states, max_left_out, out)
            build.finish(out, contents.shards)

    @override
    def write(self, folder: Path, tick: Callable[[], None]) -> None:
        """Writes the shards of this part; a subclass may write other files next to them."""
        chunks, build, workers, out = self._run
        known = {number: state.written for number, state in build.states.items()}
        calls = (
            (folder, chunk, known.get(chunk.number)) for chunk in chunks.cut(self.checked_records())
        )
        for written in in_processes(write_shard, calls, workers):
            build.add(chunks.state(written))
            if written.info:
                for _ in range(written.info.records):
                    tick()
        if not chunks.images:
            lines = self.left_out.lines
            first = f", {len(lines)} left out, {listed(lines, lines, out)}" if lines else ""
            if measured := self.counts["skipped: measured"]:
                first += f" ({measured} images are in `measured`)"
            raise UserError(
                f"expected records from {type(self).__name__}, got none{first}: check the "
                "annotation files and the folder of the images (--images)"
            )

    def checked_records(self) -> Iterator[Record]:
        """Yields the records after a check of each."""
        keys: set[str] = set()
        for group, images in self.records():
            key, ids = group.key, group.image_ids
            try:
                check(group)
                if key in keys:
                    raise RecordError("twice")
                if len(images) != len(ids):
                    raise RecordError(f"{len(images)} images for {ids}")
            except RecordError as error:
                raise UserError(
                    f"expected valid records from {type(self).__name__}, got {key!r} ({error}): "
                    "correct the annotations or the builder"
                ) from error
            keys.add(key)
            yield group, images


def image_group(image: str, texts: Mapping[str, bool], true: Iterable[str] = (),
                exhaustive: bool = False, key: str | None = None) -> Group:  # fmt: skip
    """Returns the group of one image, with texts and whether they are true; a text is its own id.

    `true` adds true texts; with `exhaustive` they are all of the corpus; `key` replaces the id.
    """
    stated = {text for text, holds in texts.items() if holds}
    return images_group(
        tar_key(key or image), [image], tuple(texts), [stated.union(true)], exhaustive
    )


def record_keys(images: Iterable[str]) -> dict[str, str]:
    """The key of each image: its name without the suffix, with a digest where others have it too.

    Example:
        >>> record_keys(["a/1.jpg", "a/1.png", "b/1.png"])
        {'a/1.jpg': 'a_1-35f4aeeb', 'a/1.png': 'a_1-8630ea93', 'b/1.png': 'b_1'}
    """
    keys = {image: tar_key(str(Path(image).with_suffix(""))) for image in images}
    uses = Counter(keys.values())
    for image, key in keys.items():
        if uses[key] > 1:
            digest = hashlib.sha256(image.encode()).hexdigest()
            keys[image] = f"{key}-{digest[:8]}"
    return keys


def tar_key(name: str) -> str:
    """Returns a name as a key of WebDataset: letters, digits, - and _ alone."""
    return re.sub(r"[^A-Za-z0-9_\-]", "_", name)


def images_group(key: str, images: Iterable[str], texts: tuple[str, ...],
                 true: Iterable[Collection[str]], exhaustive: bool = False,
                 pictures: tuple[Any, ...] | None = None) -> Group:  # fmt: skip
    """Returns the group of several images, from the texts that are true of each.

    A text is its own id; with `exhaustive` the true texts are all of the corpus; `pictures` are the
    decoded images.
    """
    true_ids = tuple(map(frozenset, true))
    truth = []
    for known in true_ids:
        truth.append([text in known for text in texts])
    return Group(
        key=key,
        image_ids=tuple(images),
        text_ids=texts,
        texts=texts,
        truth=torch.tensor(truth),
        true_ids=true_ids,
        exhaustive=exhaustive,
        images=pictures,
    )


def _argument_files(value: Any) -> Iterator[Path]:
    """The existing files among arguments, also in lists, mappings and plug-ins."""
    if isinstance(value, Configured):
        yield from _argument_files(value.__dict__.get("init_args", {}))
    elif isinstance(value, Mapping):
        yield from _argument_files(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _argument_files(item)
    elif isinstance(value, str | Path) and os.path.isfile(value):
        yield Path(value)
