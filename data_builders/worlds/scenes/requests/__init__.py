"""Scene requests in JSON go in, images with scene graphs come out: the world as an environment."""

from data_builders.worlds.scenes.requests.rendering import render

__all__ = ["render"]
