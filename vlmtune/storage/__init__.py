"""Bytes, text and JSON in, whole and checked files out; it never knows what they mean."""
