"""An index after runs that were killed: it opens, continues, and equals an uninterrupted one."""

import json
import os
import random
import signal
import sys
from pathlib import Path

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


def fork(out, build, last=0):
    """Builds in a process that kills itself at the event `last`, when it touches a path in `out`.

    Returns the number of events, or None if it was killed. The kill is the kernel's: no handler and
    no `finally` runs.
    """
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

        try:
            sys.addaudithook(watch)
            build(out)
            os.write(write, str(count).encode())
        finally:
            os._exit(0)
    os.close(write)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    with os.fdopen(read) as file:
        text = file.read()
    assert killed or text, "it failed"
    return None if killed else int(text)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_killed_runs_do_not_damage_an_index(model_folder, photos, tmp_path, monkeypatch):
    trained = model_of(model_folder, GroundedWords(heads=2))
    save_export(tmp_path / "export", trained.backbone, trained.adapter, provenance={})
    out = tmp_path / "indexes"
    out.mkdir()
    model = load(tmp_path / "export", device="cpu", batch_size=1)

    def made(folder):
        build_index([photos], model, folder, tmp_path / "export")

    with monkeypatch.context() as patch:
        patch.setattr(build, "PART_ROWS", 2)
        events, rng = fork(out / "whole", made), random.Random(0)
        moments = [*rng.sample(range(2, events), KILLS - 2), events // 2, events // 2 + 1]
        for number, moment in enumerate(moments):
            killed = out / f"killed-{number}"
            assert fork(killed, made, moment) is None, moment
            fork(killed, made, rng.randrange(2, events))  # which continues, is killed too, or ends
        for _ in range(KILLS):  # one index that only ever grows by what killed runs left
            fork(out / "often", made, events // 5)

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
