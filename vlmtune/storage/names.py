"""Very many distinct strings in a few arrays, found by number and by content.

In: strings. Out: the string of a number, the number of a string. Never: an object for each, which
takes several times the memory and is copied into each worker process that counts references to it.
"""

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np


class Names:
    """Distinct strings in order: their bytes and 24 more for each.

    Example:
        >>> names = Names(["cat", "dog"])
        >>> names[1], names.find("dog"), names.find("car"), len(names)
        ('dog', 1, None, 2)
    """

    def __init__(self, names: Iterable[str]) -> None:
        encoded = list(map(_bytes, names))
        self._content = b"".join(encoded)
        lengths = map(len, encoded)  # string i is from end i to end i + 1
        self._ends = np.cumsum([0, *lengths], dtype=np.int64)
        digests = np.fromiter(map(_digest, encoded), np.uint64, len(encoded))
        # Sorted digests are found by bisection.
        self._order = np.argsort(digests, kind="stable")
        self._digests = digests[self._order]

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> str:
        i = range(len(self))[index]  # an IndexError where there is none
        return self._bytes(i).decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))

    def find(self, name: str) -> int | None:
        """Returns the number of a string, or None."""
        wanted = _bytes(name)
        digest = np.uint64(_digest(wanted))
        first = np.searchsorted(self._digests, digest, "left")
        last = np.searchsorted(self._digests, digest, "right")
        # Two strings of one digest are unlikely, not impossible.
        for i in self._order[first:last].tolist():
            if self._bytes(i) == wanted:
                return i
        return None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    def _bytes(self, i: int) -> bytes:
        start = self._ends[i]
        end = self._ends[i + 1]
        return self._content[start:end]


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")  # JSON may hold half a pair


def _digest(encoded: bytes) -> int:
    digest = hashlib.blake2b(encoded, digest_size=8).digest()
    return int.from_bytes(digest, "big")
