"""Records to numbers, knowing only a scorer."""
