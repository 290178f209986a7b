"""Words: tags, captions rewritten so that they become false, and how likely a caption is."""
