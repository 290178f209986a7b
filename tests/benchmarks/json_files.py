"""Files of benchmarks: JSON as it is and changed, and images that nobody opens."""

import json
from pathlib import Path


def write(folder, raw, name="file.json"):
    path = folder / name
    path.write_text(json.dumps(raw))
    return path


def raw_of(fixture):
    return json.loads(Path(fixture.path).read_text())


def touch(folder, *names):
    """Files that are there and not empty, which is what a benchmark asks of an image."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"0")
