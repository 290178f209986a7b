"""Images, texts and benchmarks in, scores and results out, each input encoded once.

It never trains, and never changes a weight.
"""

from vlmtune.evaluation.scorer import Scorer

__all__ = ["Scorer"]
