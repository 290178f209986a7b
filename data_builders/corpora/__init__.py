"""Corpora and benchmarks as distributed, one file each.

In: annotation files and images of a corpus. Out: records, written to shards.
"""
