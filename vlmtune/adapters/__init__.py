"""Features to scores: what is trained."""
