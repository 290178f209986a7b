"""The embedded world in the raw formats of the real corpora: pure functions, a module each."""
