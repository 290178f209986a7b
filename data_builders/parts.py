"""Parts of a build: each is built by itself, and `vlmtune build merge` makes one corpus of them.

In: the folders of all parts. Out: the corpus, as one build without parts writes it.
Never: a record twice or none, or parts of different builds.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import to_json
from typing_extensions import TypedDict

from data_builders.left_out import LIMIT, Line, check_fraction, listed, ordered, report, write_lines
from data_builders.shard_files import sha256
from data_builders.unfinished import ShardState
from vlmtune.data.schema import MANIFEST, Manifest, ShardInfo
from vlmtune.errors import UserError
from vlmtune.storage.files import read_json, write_atomically, write_text

PART = "part.json"  # in the folder of a part, which has no manifest


@dataclass(frozen=True)
class Part:
    """Part `number` of `count` of a build: it writes every `count`-th shard.

    Example:
        >>> Part.parse("2/3").writes(4)
        True
    """

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Part":
        """Reads "2/8"."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(f"expected a part as 1/8 to 8/8, got {text!r}: correct --part")
        return cls(int(match[1]), int(match[2]))

    def writes(self, shard: int) -> bool:
        """Tells whether this part writes a shard, by its number from 0."""
        return shard % self.count == self.number - 1


@dataclass(frozen=True)
class Contents:
    """What all parts of a build find in the annotations.

    `records` is the sha256 of the keys of all records, `lines` what was left out before any image
    was opened, and `total` the images or rows (`unit`) for the share that may be left out.
    """

    shards: int
    records: str
    counts: Mapping[str, int]
    lines: Sequence[Line]
    total: int
    unit: str


class PartFile(TypedDict):
    """The content of `part.json`: what identifies the build, which part it is, its shards."""

    builder: str
    arguments: dict[str, Any]
    sources: dict[str, Any]
    part: tuple[int, int]
    contents: Contents
    states: list[ShardState]


def finish(
    folder: Path, identity: Mapping[str, Any], part: Part | None, contents: Contents,
    states: Sequence[ShardState], limit: float, out: Path,
) -> None:  # fmt: skip
    """Writes beside the shards of a build of `out` its manifest, or of one part its `part.json`.

    Raises:
        UserError: More than the share `limit` of the whole corpus is unusable, or no record is
            left.
    """
    lines, shards, counts = _summary(contents, states)
    check_fraction(lines, contents.total, contents.unit, limit, out)
    if part is not None:
        report(ordered(line for state in states for line in state.lines))
        numbers = part.number, part.count
        content = {**identity, "part": numbers, "contents": contents, "states": states}
        write_text(folder / PART, to_json(content, fallback=str).decode())
        return
    if states and not shards:
        raise UserError(
            f"expected records from {identity['builder']}, got none, {listed(lines, lines, out)}: "
            "check the images"
        )
    report(lines)
    write_lines(lines, folder)
    manifest = Manifest(**identity, shards=shards, counts=counts)
    (folder / MANIFEST).write_text(manifest.to_json())


def merge(folders: Sequence[Path], out: Path, limit: float = LIMIT) -> None:
    """Makes one corpus of all parts of a build. The folders of the parts stay.

    Shards are linked where they lie on the same disk, and copied otherwise.

    Args:
        folders: The folders of the parts, in any order.
        out: The folder to write; it must not exist.
        limit: Largest share of images or rows that may be unusable, over all parts.

    Raises:
        UserError: A part is missing, comes twice, is damaged or belongs to another build.
    """
    parts = {Path(folder): read_part(Path(folder)) for folder in folders}
    _check_complete(parts)
    first, content = next(iter(parts.items()))
    for folder, other in parts.items():
        for name in ("builder", "arguments", "sources", "contents"):
            if other[name] != content[name]:
                raise UserError(
                    f"expected parts of one build, {folder} and {first} differ in their {name}: "
                    "build the older part again"
                )
    states: list[ShardState] = []
    for other in parts.values():
        states += other["states"]
    states.sort(key=lambda state: state.written.number)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"expected {out} to be free, it holds something: choose another folder")
    identity = {name: content[name] for name in ("builder", "arguments", "sources")}
    with write_atomically(out) as temporary:
        temporary.mkdir()
        for folder, other in parts.items():
            shards = {info.file: info for info in _shards(other)}
            for file in sorted(folder.iterdir()):
                if file.name in shards:
                    _take(file, temporary / file.name, shards[file.name])
                elif folder == first and file.name != PART:
                    shutil.copy2(file, temporary / file.name)  # what a builder writes beside them
        finish(temporary, identity, None, content["contents"], states, limit, out)


def _summary(
    contents: Contents, states: Sequence[ShardState]
) -> tuple[list[Line], tuple[ShardInfo, ...], dict[str, int]]:
    """All lines, shards and counts of a build."""
    counts = Counter(contents.counts)
    late: dict[Line, None] = {}  # lines of images, which are opened last; each once
    for state in states:
        counts.update(state.counts)
        late |= dict.fromkeys(state.lines)
    counts.update(f"skipped: {line.reason}" for line in late)
    shards = tuple(state.written.info for state in states if state.written.info)
    return ordered([*contents.lines, *late]), shards, dict(sorted((+counts).items()))


def read_part(folder: Path) -> PartFile:
    """Returns the content of `part.json`, after a check that the shards are there.

    Raises:
        UserError: It is missing or malformed, or a shard is missing or truncated.
    """
    if not (folder / PART).is_file():
        raise UserError(
            f"expected a part that `vlmtune build NAME --part 1/8 --out {folder}` wrote, got "
            f"{folder} without {PART}: build it, or name another folder"
        )
    content: PartFile = read_json(folder / PART, "a part of a build", "build it again", PartFile)
    check_shards(folder, {info.file: info.bytes for info in _shards(content)})
    return content


def check_shards(folder: Path, sizes: Mapping[str, int]) -> None:
    """Raises `UserError` unless the shards are there, each with so many bytes."""
    for name, size in sizes.items():
        file = folder / name
        if not (file.is_file() and file.stat().st_size == size):
            raise UserError(
                f"expected the complete shard {file}, it is missing or truncated: remove {folder} "
                "and build it again"
            )


def _shards(content: PartFile) -> list[ShardInfo]:
    return [state.written.info for state in content["states"] if state.written.info]


def _check_complete(parts: Mapping[Path, PartFile]) -> None:
    """Checks that every part is there once, and every shard in its part."""
    count = max(content["part"][1] for content in parts.values())
    wanted = [(number, count) for number in range(1, count + 1)]
    given = [content["part"] for content in parts.values()]
    if sorted(given) != wanted:
        pairs = zip(parts, given, strict=True)
        named = [f"{a}/{b} ({folder})" for folder, (a, b) in pairs]
        absent = [f"{a}/{b}" for a, b in wanted if (a, b) not in given]
        raise UserError(
            f"expected every part 1/{count} to {count}/{count} once, got {', '.join(named)}; "
            f"missing: {', '.join(absent) or 'none'}: name each part once, and build the missing "
            "ones"
        )
    for folder, content in parts.items():
        part = Part(*content["part"])
        numbers = [state.written.number for state in content["states"]]
        if numbers != [n for n in range(content["contents"].shards) if part.writes(n)]:
            raise UserError(
                f"expected all shards of part {part.number}/{part.count} in {folder}, some are "
                "missing: remove it and build this part again"
            )


def _take(file: Path, target: Path, info: ShardInfo) -> None:
    """Links or copies a shard, and checks it."""
    try:
        os.link(file, target)
    except OSError:  # another disk, or a file system without links
        shutil.copyfile(file, target)
    if sha256(target) != info.sha256:
        raise UserError(
            f"expected the shard {file} as it was built, its sha256 differs: remove {file.parent} "
            "and build this part again"
        )
