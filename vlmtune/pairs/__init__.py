"""Which image-text pairs of a batch a joint adapter scores: one policy a file."""
