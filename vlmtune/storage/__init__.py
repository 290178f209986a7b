"""Whole and checked files.

In: bytes, text and JSON. Out: files and folders. Never: what they mean.
"""
