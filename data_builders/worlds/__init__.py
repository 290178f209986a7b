"""A rendered world with exact scene graphs, and functional programs over scenes.

In: a spec and a seed. Out: images, scene graphs, captions and questions, in the formats of real
corpora.
"""
