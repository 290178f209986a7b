"""Pre-trained vision-language models.

In: images and captions, and a `FeatureSpec`. Out: pooled vectors or tokens.
Never: training; a backbone does not know which adapter uses it.
"""
