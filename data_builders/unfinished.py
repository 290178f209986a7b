"""The folder of an unfinished build: a killed build leaves it, and the next one resumes from it.

In: the folder of the corpus and what identifies the build. Out: a hidden folder beside it, with the
complete shards and what is known of each. Never: a shard of another build.

`.NAME.build` beside NAME holds `build.json`, what identifies the build; `shards`, which becomes
NAME; and a file in `states` for each complete shard.
"""

import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import to_json

from data_builders.left_out import Line
from data_builders.shard_files import Written
from vlmtune.errors import UserError
from vlmtune.storage.files import read_json, remove, remove_leftovers, write_text
from vlmtune.storage.folder import locked

_TRIES = 3  # times that a folder may be removed while this process waits for it


class ShardState(NamedTuple):
    """A complete shard: what was written, the lines of what was left out, and what that counted."""

    written: Written
    lines: tuple[Line, ...] = ()
    counts: Mapping[str, int] = {}


@dataclass
class Unfinished:
    """An unfinished build: its folder, and the complete shards by number."""

    folder: Path
    states: dict[int, ShardState]

    @property
    def shards(self) -> Path:
        """The folder that becomes the corpus."""
        return self.folder / "shards"

    def add(self, state: ShardState) -> None:
        """Keeps the state of a complete shard."""
        self.states[state.written.number] = state
        file = self.folder / f"states/{state.written.number:06d}.json"
        write_text(file, to_json(state).decode())

    def finish(self, out: Path, count: int) -> None:
        """Moves the folder with its first `count` shards to `out`."""
        kept = {state.written.info.file for n, state in self.states.items()
                if n < count and state.written.info}  # fmt: skip
        for file in [*self.shards.glob("shard-*.tar"), *self.shards.glob(".*")]:
            if file.name not in kept:
                remove(file)
        if out.is_dir():
            out.rmdir()  # it is empty
        self.shards.replace(out)
        remove(self.folder)


def folder_of(out: Path) -> Path:
    """The folder of the unfinished build of `out`."""
    return out.with_name(f".{out.name}.build")


@contextmanager
def unfinished(out: Path, identity: Mapping[str, Any]) -> Iterator[Unfinished]:
    """Gives the unfinished build of `out`: what a killed call left, or a new build.

    Waits for another process that builds `out`. Removes the leftover of a build with another
    identity. If the block raises, complete shards stay for the next call.
    """
    folder = folder_of(out)
    remove_leftovers(out)
    for tries in itertools.count(1):
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(folder / "build"))
            except (FileNotFoundError, UserError):
                if folder.exists() or tries > _TRIES:
                    raise
                continue  # the process that finished meanwhile removed the folder
            if not (folder / "build.lock").exists():
                continue
            build = Unfinished(folder, _known(folder, identity))
            try:
                yield build
            except BaseException:
                _leave(build)
                raise
            remove(folder)
            return


def _known(folder: Path, identity: Mapping[str, Any]) -> dict[int, ShardState]:
    """The complete shards of a build with this identity; removes the shards of other builds."""
    file, states = folder / "build.json", folder / "states"
    try:
        same = read_json(file, "an unfinished build") == identity
    except UserError:
        same = False
    if not same:
        remove(states)
        remove(folder / "shards")
    try:
        for inner in (states, folder / "shards"):
            inner.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(
            f"expected to write {folder}, got {error.strerror}: choose another folder"
        ) from error
    write_text(file, json.dumps(identity))
    known: dict[int, ShardState] = {}
    for path in states.glob("*.json"):
        try:
            known[int(path.stem)] = read_json(path, "the state of a shard", shape=ShardState)
        except (UserError, ValueError):
            remove(path)  # the shard is written again
    return known


def _leave(build: Unfinished) -> None:
    """Says what stays of a build that ends early; nothing stays without a complete shard."""
    if not build.states:
        remove(build.folder)
        return
    stay = "complete shard stays" if len(build.states) == 1 else "complete shards stay"
    print(
        f"{len(build.states)} {stay} in {build.folder}; a build of the same data resumes there",
        file=sys.stderr,
    )
