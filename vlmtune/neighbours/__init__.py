"""Mines images hard to tell apart: builds the cache that `vlmtune.data.neighbours` reads."""

from vlmtune.neighbours.cache import CacheKey, Score, open_or_build
from vlmtune.neighbours.nearest import nearest

__all__ = ["CacheKey", "Score", "nearest", "open_or_build"]
