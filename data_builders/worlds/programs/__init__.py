"""CLEVR's question engine: scene graphs go in, programs, sentences and answers come out."""
