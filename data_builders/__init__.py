"""Takes corpora as distributed, or renders a world, and writes shards that `vlmtune` trains on.

Never imports more of vlmtune than its types, configs, errors, files and the schema of records.
"""
