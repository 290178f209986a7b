"""Takes scores and truth, gives numbers with chance levels, 95 % intervals and tests.

Pure functions, and `torchmetrics.Metric` classes over some of them. Never reads a file or a model.
A tie is lost unless a benchmark passes another `ties`; AUROC counts it half.
"""
