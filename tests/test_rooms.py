"""The rooms offer their public names, on use: `from vlmtune.adapters import LoRA`."""

import importlib
import subprocess
import sys

import yaml

import vlmtune
from tests.imports import offered
from vlmtune.config import ROOT

ROOMS = sorted({name.rpartition(".")[0] for name in offered()})
PLUGINS = sorted(
    path
    for path in ROOT.glob("configs/plugins/*/*.yaml")
    if path.parent.name not in ("builders", "models")
)
FRESH = """
import sys
import vlmtune
assert {"load", "adapters", "search", "types"} <= set(dir(vlmtune))
assert "LoRA" in dir(vlmtune.adapters)
print(sorted({"torch", "numpy", "open_clip"} & set(sys.modules)))
"""


def test_the_names_cost_no_import_until_they_are_used():
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_room_offers_each_plug_in():
    for path in PLUGINS:
        class_path = yaml.safe_load(path.read_text("utf-8"))["class_path"]
        module, _, name = class_path.rpartition(".")
        room = importlib.import_module(".".join(module.split(".")[:2]))
        assert getattr(room, name) is getattr(importlib.import_module(module), name), path


def test_each_name_of_a_room_is_there():
    sources = offered()
    for room in ROOMS:
        names = {name.rpartition(".")[2] for name in sources if name.startswith(f"{room}.")}
        module = importlib.import_module(room)
        assert set(dir(module)) == set(module.__all__) == names
        for name in names:
            source = importlib.import_module(sources[f"{room}.{name}"])
            assert getattr(module, name) is getattr(source, name), (room, name)


def test_help_documents_the_package():
    assert vlmtune.load is vlmtune.model.load
    assert "shards to batches" in str(vlmtune.__doc__)
    rooms = {f"vlmtune.{name}" for name in dir(vlmtune)}
    assert set(ROOMS) <= rooms
