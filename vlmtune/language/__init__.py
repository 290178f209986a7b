"""Takes captions, gives tags, captions rewritten to be false, and the likelihood of a caption.

Works without a network or a download. Never looks at an image.
"""
