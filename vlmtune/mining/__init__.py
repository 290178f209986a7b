"""Finds the images of a corpus that a model finds hard to tell apart.

In: shards and a model. Out: a similarity cache, and from it groups of training batches.
Never: a training step.
"""
