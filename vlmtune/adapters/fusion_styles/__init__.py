"""Styles of fusing image and text tokens, one a file.

In: image and text tokens of one width. Out: the [CLS] tokens of pairs.
Never: a score; the adapter that a style is given to makes it.
"""
