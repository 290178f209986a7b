"""Ids of images and captions in, features out: from the store, from memory or from the backbone.

In: ids, and a backbone. Out: features by id. Never: what training may change on disk.
"""
