"""Shards to batches: takes folders of records, gives collated batches of groups.

It never runs a model, and what it gives is a function of the data, the seed and the position alone.
"""
