"""Losses: take scores and targets, give a scalar to minimise, one objective a file.

They never see a model, an image or a caption, and never start a process group.
"""
