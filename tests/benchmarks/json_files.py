"""JSON files of benchmarks, as they are and changed."""

import json
from pathlib import Path


def write(folder, raw, name="file.json"):
    path = folder / name
    path.write_text(json.dumps(raw))
    return path


def raw_of(fixture):
    return json.loads(Path(fixture.path).read_text())
