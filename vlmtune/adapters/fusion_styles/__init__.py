"""Ways to fuse image and text tokens, one a file; joint adapters are given one."""
