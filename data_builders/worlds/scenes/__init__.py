"""Takes a spec and a seed; gives 3D scenes with scene graphs, in the formats of real corpora."""
