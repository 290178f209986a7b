"""Pair policies: take the targets of a batch, give the image-text pairs a joint adapter scores.

They never see images, texts or the model's loss. One policy a file.
"""
