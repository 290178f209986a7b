"""Embedded world: procedurally rendered 3D scenes with an exact scene graph."""
