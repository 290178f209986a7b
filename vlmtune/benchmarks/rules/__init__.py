"""The four rules that turn scores into numbers; a benchmark subclasses one of them.

In: scores of images with texts. Out: metrics, an outcome for each item, examples. Never: files.
"""
