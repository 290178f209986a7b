"""Takes corpora as distributed, or renders a world, and writes shards that `vlmtune` trains on.

Imports only the types, configs, errors, files and record schema of vlmtune.
"""
