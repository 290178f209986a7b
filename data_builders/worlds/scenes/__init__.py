"""The rendered world: 3D scenes with exact scene graphs.

In: a spec and a seed. Out: images and annotations in the formats of real corpora.
"""
