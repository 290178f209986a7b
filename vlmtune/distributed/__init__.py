"""Tensors and objects of one rank in, those of all ranks out; it never knows what they mean."""
