"""Batches to features."""
