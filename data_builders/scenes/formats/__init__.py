"""Takes rendered scenes and gives annotation files in the formats of real corpora, one a module.

Never samples or renders a scene.
"""
