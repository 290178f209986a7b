"""Shards and a model in, images that are hard to tell apart out, as groups of training batches.

It builds and reads the similarity cache, and never trains.
"""
