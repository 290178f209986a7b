"""How long a loop waits for its items. In: items. Out: the same items, and seconds.

Never: the time that the loop itself takes.
"""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class Stopwatch:
    """Adds up the seconds that fetching items takes.

    Attributes:
        seconds: The sum so far.

    Example:
        >>> watch = Stopwatch()
        >>> list(watch.over("ab")), watch.seconds > 0
        (['a', 'b'], True)
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """Yields the items."""
        iterator = iter(items)
        while True:
            started = time.monotonic()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.seconds += time.monotonic() - started
            yield item
