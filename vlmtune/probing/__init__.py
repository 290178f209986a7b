"""Images in, what their embeddings know out: which transformation was applied, which class it is.

It never trains the model: probes are small networks on frozen embeddings.
"""
