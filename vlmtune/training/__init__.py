"""Batches in, gradients, checkpoints and reports out, exact on any number of ranks.

It trains any adapter with any objective, and never names one (but for `methods`).
"""
