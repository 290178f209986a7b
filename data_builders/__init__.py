"""Takes corpora as distributed, or renders a world, and writes shards that `vlmtune` trains on.

`corpora/` reads what others distribute, `worlds/` renders scenes, and the files beside them write
shards. Imports only the types, configs, errors, files and record schema of vlmtune.
"""
