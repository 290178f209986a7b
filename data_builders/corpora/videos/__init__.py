"""What the builders of EqBen's parts from videos share.

In: videos and pairs of moments. Out: frames, and files of pairs.
"""
