"""Every model of open_clip, tower by tower.

In: the name of a model and of its weights. Out: an `OpenClip` backbone.
"""
