"""Images and texts to scores: what benchmarks, reports and exported models call."""

from vlmtune.scoring.scorer import Scorer

__all__ = ["Scorer"]
