"""Annotation files of the rendered world, a module a corpus.

In: rendered scenes. Out: contents of files in the format of the corpus.
"""
