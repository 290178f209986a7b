"""Folders in remote storage in, whole and checked local files out; it never knows what they mean.

`address` names remote files, `download` gets one, `cache` keeps them, `folder` joins the three.
"""
