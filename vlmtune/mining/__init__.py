"""Mines images hard to tell apart: builds the cache that `vlmtune.data.neighbours` reads."""

from vlmtune.mining.cache import CacheKey, Score, open_or_build
from vlmtune.mining.nearest import nearest

__all__ = ["CacheKey", "Score", "nearest", "open_or_build"]
