"""Annotated videos go in, EqBen's pairs of frames come out."""
