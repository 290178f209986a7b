import pytest

from data_builders.worlds.scenes.videos import FPS, FRAMES
from tests.data_builders.conftest import load
from tests.data_builders.worlds.scenes.truth import PLURALS
from vlmtune.benchmarks.boundary_grounding import BoundaryGrounding


def test_states_hold_before_and_after_the_boundary_only(suite, graphs):
    content = load(suite / "geb/test.json")
    assert len(content) > 1
    firsts = set()
    for video, (row,) in content.items():
        frames = sorted((suite / "images/geb" / video).iterdir())
        assert len(frames) == FRAMES
        first = row["timestamp"] * FPS + 0.5
        firsts.add(first)
        the, shape = row["subject"].split()
        assert the == "the"
        assert shape in PLURALS.values()
        for k, frame in enumerate(frames):
            meant = [o for o in graphs["videos"][frame.name]["objects"] if o["shape"] == shape]
            assert len(meant) == 1
            states = [row[f"status_{side}"] == f"is {meant[0]['color']}"
                      for side in ("before", "after")]  # fmt: skip
            assert states == [k < first, k >= first]
        assert len({frame.read_bytes() for frame in frames}) == FRAMES
    assert len(firsts) > 1


def test_the_reader_reads_it(suite):
    benchmark = BoundaryGrounding(str(suite / "geb/test.json"), str(suite / "images/geb"), fps=FPS)
    metrics = benchmark.run(lambda *_: benchmark.items.truth.float()).metrics
    assert metrics["accuracy@0.1"].value == metrics["accuracy@0.5"].value == pytest.approx(1.0)
