"""Takes a spec and a seed and renders the embedded world: 3D scenes with an exact scene graph.

Gives files in the raw formats of real corpora and benchmarks. Never reads a corpus.
"""
