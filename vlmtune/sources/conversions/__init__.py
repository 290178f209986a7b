"""Functions that make files for readers out of files that came: a source names one by its path."""
