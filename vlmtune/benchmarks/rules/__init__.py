"""The five rules that turn scores into numbers; most benchmarks subclass one of them.

A benchmark with a metric of its own subclasses `benchmarks.base.Benchmark`, as Cola's mAP does.

In: scores of images with texts. Out: metrics, an outcome for each item, examples. Never: files.
"""
