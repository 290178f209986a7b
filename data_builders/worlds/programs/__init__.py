"""CLEVR's question engine.

In: scene graphs. Out: programs, sentences and answers.
"""
