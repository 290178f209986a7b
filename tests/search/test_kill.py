"""An index after runs that were killed: it opens, continues, and equals an uninterrupted one."""

import json
import subprocess
import sys

import pytest
import torch

from tests.search.test_index import model_of, photos
from tests.tiny import halves
from vlmtune.adapters.grounded_words import GroundedWords
from vlmtune.export import save_export
from vlmtune.model import load
from vlmtune.search import Index, build, build_index

__all__ = ["photos"]  # a fixture
KILLS = 10
# Each build runs in a fork that kills itself at the n-th time it touches a path in the index. The
# kill is the kernel's: no handler and no `finally` runs.
PROGRAM = """
import os, random, signal, sys, warnings
import torch

torch.set_num_threads(1)
from pathlib import Path

warnings.simplefilter("ignore")
import vlmtune.search.build as build
from vlmtune.model import load

export, photos, folder, kills = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
build.PART_ROWS = 2
model = load(export, device="cpu", batch_size=1)



def fork(out, last=None):
    # Builds in a process that dies at the event `last`; returns the number of events, or None.
    read, write = os.pipe()
    if not (child := os.fork()):
        count = 0

        def watch(event, arguments):
            nonlocal count
            if not any(str(out) in str(x) for x in arguments if isinstance(x, str | Path)):
                return
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        build.build_index([photos], model, out, export)
        os.write(write, str(count).encode())
        os._exit(0)
    os.close(write)
    status = os.waitpid(child, 0)[1]
    text = os.read(read, 99)
    killed = os.WIFSIGNALED(status)
    assert killed or status == 0, status
    return None if killed else int(text)


events = fork(folder / "whole")
rng = random.Random(0)
print("events", events)
moments = sorted(rng.sample(range(2, events), kills - 2)) + [events // 2, events // 2 + 1]
for number, moment in enumerate(moments):
    out = folder / f"killed-{number}"
    assert fork(out, moment) is None, moment
    second = fork(out, rng.randrange(2, events))  # the run that continues is killed too, or ends
    print("killed", moment, second)
# One index that only ever grows by what killed runs left.
steps = [fork(folder / "often", events // 5) for _ in range(kills)]
print("often", steps)
"""


@pytest.mark.slow
def test_killed_runs_do_not_damage_an_index(model_folder, photos, tmp_path):
    trained = model_of(model_folder, GroundedWords(heads=2))
    save_export(tmp_path / "export", trained.backbone, trained.adapter, provenance={})
    out = tmp_path / "indexes"
    out.mkdir()
    arguments = [tmp_path / "export", photos, out, KILLS]
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr

    model = load(tmp_path / "export", device="cpu", batch_size=1)
    whole = Index.open(out / "whole", model)
    order = sorted(range(len(whole)), key=lambda i: whole.paths[i])
    assert len(order) == 9
    indexes = [path for path in sorted(out.iterdir()) if path.is_dir() and path.name != "whole"]
    assert len(indexes) == KILLS + 1
    for folder in indexes:
        if (folder / "index.json").exists():  # what a killed run leaves can be searched
            Index.open(folder, model)
        built = build_index([photos], model, folder, tmp_path / "export")
        assert (built.images, built.unread) == (9, ())
        build_index([photos], model, folder, tmp_path / "export")  # removes the shortlist of before
        index = Index.open(folder, model)
        here = sorted(range(9), key=lambda i: index.paths[i])
        assert [index.paths[i] for i in here] == [whole.paths[i] for i in order]
        assert index._vectors(here).equal(whole._vectors(order))
        tokens, expected = index._images(here), whole._images(order)
        torch.testing.assert_close(tokens.tokens.values, expected.tokens.values, rtol=0, atol=0)
        assert index._shortlist is not None
        assert len(index._shortlist.vectors) == sum(len(part.ids) for part in index._parts)
        listed = json.loads((folder / "index.json").read_text())
        names = ["index.json", *sorted(listed["parts"]), listed["shortlist"]]
        assert sorted(path.name for path in folder.iterdir()) == names


def test_a_whole_part_that_has_no_name_yet_gets_one(model_folder, photos, tmp_path, monkeypatch):
    """The run was killed after the last file of its second part, before the part was renamed."""
    monkeypatch.setattr(build, "PART_ROWS", 4)
    model, out = model_of(model_folder, GroundedWords(heads=2)), tmp_path / "index"
    build_index([photos], model, out, "x")
    (out / "index.json").unlink()
    (out / "part-00001").rename(out / ".part-00001.123.part")
    (out / "part-00002").rename(out / "part-00007")
    halves("red", "blue", 99).save(photos / "new.png")
    assert build_index([photos], model, out, "x").images == 10
    listed = json.loads((out / "index.json").read_text())
    names = sorted(listed["parts"])
    assert names == ["part-00000", "part-00007", "part-00008", "part-00009"]
    written = ["index.json", *names, listed["shortlist"]]
    assert sorted(path.name for path in out.iterdir()) == written
    assert len(Index.open(out, model).search("red", 10)) == 10
