"""Takes annotation files and a scorer; gives the numbers of each benchmark.

A benchmark is its reader; one of four rules turns scores into numbers. It never sees a model.
"""
