"""Ids of images and captions in, features out: from the store, from memory or from the backbone.

It stores what is frozen, and never what training may change.
"""
