"""What came into a data folder: one line a file, written when the file is whole.

In: paths below the data folder. Out: `.downloads/files.jsonl`, read again by the next run.
Never: a line of a file that is not there; a torn last line, of a killed run, is passed over.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from vlmtune.storage.files import sha256_of, write_text

STATE = ".downloads"
"""Folder below the data root: what came, archives that are not unpacked yet, and locks."""

ELSEWHERE = "name another folder by --data-root or VLMTUNE_DATA"
"""What to do where the data root has no room."""

MEMBERS = ".members.json"
BY_PERSON = "found in its place"
"""The address of a file that a person had put into its place."""


@dataclass(frozen=True)
class Arrival:
    """A file that came.

    Attributes:
        path: Its path below the data root.
        address: Where it came from.
        bytes: Its size.
        sha256: Of its content.
        date: When it came, in UTC.
    """

    path: str
    address: str
    bytes: int
    sha256: str
    date: str


class Ledger:
    """The files that came into `root`, by path.

    Threads share it. Each line is written with one call, so a killed run leaves at most a torn
    last line.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / STATE / "files.jsonl"
        self._journal = root / STATE / "unpacking.txt"
        self._lock = threading.Lock()  # several threads fetch images
        self._arrivals: dict[str, Arrival] = {}
        if self.file.is_file():
            self._read()

    def _read(self) -> None:
        # Later lines of a path win, as it may have come again.
        text = self.file.read_text(encoding="utf-8", errors="replace")
        for line in text.split("\n"):
            try:
                arrival = Arrival(**json.loads(line))
            except (ValueError, TypeError):  # a blank line, or a torn one
                continue
            self._arrivals[arrival.path] = arrival

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def add(self, path: Path, address: str) -> Arrival:
        """Notes a whole file; returns what is noted."""
        now = datetime.now(UTC)
        arrival = Arrival(
            path=self._name(path),
            address=address,
            bytes=path.stat().st_size,
            sha256=sha256_of(path),
            date=now.isoformat(timespec="seconds"),
        )
        line = json.dumps(asdict(arrival))
        with self._lock:
            self._arrivals[arrival.path] = arrival
            self.file.parent.mkdir(parents=True, exist_ok=True)
            # The line break comes first: it closes the torn line of a killed run.
            with self.file.open("a", encoding="utf-8") as file:
                file.write(f"\n{line}")
        return arrival

    def get(self, path: Path) -> Arrival | None:
        """What is known of a file; None if it never came."""
        return self._arrivals.get(self._name(path))

    def has(self, path: Path) -> bool:
        """Whether a file came and still has its size."""
        arrival = self.get(path)
        return arrival is not None and _has_size(path, arrival.bytes)

    def wrote(self, path: Path) -> bool:
        """Whether a file came, or was unpacked or made, of any version of its source."""
        arrival = self.get(path)
        came = arrival is not None and arrival.address != BY_PERSON
        return came or self._name(path) in self._unpacked

    def will_write(self, path: Path) -> None:
        """Notes a member that is about to be written, so that a killed run knows it for its own."""
        name = self._name(path)
        if name not in self._unpacked:
            self._unpacked.add(name)
            self._journal.parent.mkdir(parents=True, exist_ok=True)
            with self._journal.open("a", encoding="utf-8", errors="replace") as file:
                file.write(f"{name}\n")

    # -- archives ------------------------------------------------------------------------------

    def note_members(self, archive: str, members: Mapping[Path, int]) -> None:
        """Notes the members of an unpacked archive and their bytes."""
        sizes = {self._name(path): size for path, size in members.items()}
        text = json.dumps(sizes)
        write_text(self._members_file(archive), text)
        self._unpacked.update(sizes)

    def members(self, archive: str) -> dict[str, int] | None:
        """The members of an archive that was unpacked whole; None if it was not."""
        try:
            text = self._members_file(archive).read_text(encoding="utf-8")
            return json.loads(text)
        except (OSError, ValueError):
            return None

    def has_members(self, archive: str) -> bool:
        """Whether an archive was unpacked, and all of its members still have their sizes."""
        members = self.members(archive)
        if not members:
            return False
        return all(_has_size(self.root / name, size) for name, size in members.items())

    @cached_property
    def _unpacked(self) -> set[str]:
        """The members of all archives, also of those that were not unpacked to their end."""
        names: set[str] = set()
        for file in (self.root / STATE).glob(f"*{MEMBERS}"):
            names.update(self.members(file.name.removesuffix(MEMBERS)) or ())
        if self._journal.is_file():
            text = self._journal.read_text(encoding="utf-8", errors="replace")
            names.update(text.split("\n"))
        return names

    def _members_file(self, archive: str) -> Path:
        return self.root / STATE / f"{archive}{MEMBERS}"


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size
