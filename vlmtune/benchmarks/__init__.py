"""Benchmarks: annotation files are read as items, whose scores become numbers.

In: annotation files, images and a scorer. Out: a `Result` of each benchmark. Never: a model.

A benchmark is its reader; one of five `rules` turns scores into numbers.
To add one: subclass a rule, write `read` and `fixture`, and add a YAML of the same stem to
`configs/plugins/benchmarks`; `tests/contracts` then tests it. See docs/extend.md.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
