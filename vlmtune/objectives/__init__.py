"""Scores to a loss: the training leaf."""
