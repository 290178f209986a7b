"""The rendered world as an environment.

In: scene requests in JSON. Out: images with scene graphs.
"""

from data_builders.worlds.scenes.requests.rendering import render

__all__ = ["render"]
