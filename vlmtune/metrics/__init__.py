"""Scores to numbers: pure functions, the evaluation leaf."""
