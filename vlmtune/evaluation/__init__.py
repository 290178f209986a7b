"""Images and texts to scores: what benchmarks, reports and exported models call."""

from vlmtune.evaluation.scorer import Scorer

__all__ = ["Scorer"]
