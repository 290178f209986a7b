"""Takes rendered scenes, gives annotation files in the formats of real corpora."""
