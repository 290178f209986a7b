"""Models of Hugging Face's transformers, one file a family.

In: the name or folder of a model. Out: a backbone.
"""
